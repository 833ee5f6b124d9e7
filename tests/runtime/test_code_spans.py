"""Code in a text: what is blanked, and the fence that a text ends with."""

import pytest

from runtime.code_spans import last_fence, without_code


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a `b` c", "a     c"),
        ("a ``b ` c`` d", "a           d"),
        ("a `b\nc` d", "a `b\nc` d"),
        ("a ` b", "a ` b"),
        ("```\nx\n```", "   \n \n   "),
        ("a\n```py\nx\n```\nb", "a\n     \n \n   \nb"),
        ("~~~\nx\n~~~\nb", "   \n \n   \nb"),
        ("```\nx\n~~~\ny\n```\nb", "   \n \n   \n \n   \nb"),
        ("````\n```\n````\nb", "    \n   \n    \nb"),
        ("```\nx", "```\nx"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_code_is_blanked(text, seen):
    """Fenced and inline, line ends aside; what is not closed is no code. Every place stays what it is."""
    assert without_code(text) == seen
    assert len(without_code(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```json\n{}\n```", ("", "json", "{}")),
        ("a\n```\nx\ny\n```\n\n", ("a\n", "", "x\ny")),
        ("~~~ JSON\nx\n~~~", ("", "json", "x")),
        ("```\n```", ("", "", "")),
        ("```\nx\n```\nb", None),
        ("```\nx", None),
        ("plain", None),
    ],
)
def test_the_fence_at_the_end(text, expected):
    """What stands before it, its language and its code."""
    assert last_fence(text) == expected
