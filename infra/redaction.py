"""What looks like a secret inside a text, by its form: one list for log lines and for what an endpoint says."""

import re

#: words of which one stands, in whatever case, in every text that the pattern finds; the pattern; what takes its place
_SECRETS = (
    (("bearer",), re.compile(r"(?i)\b(bearer)\s+[\w.~+/=\-]{8,}"), r"\1 ***"),
    (("basic",), re.compile(r"(?i)\b(basic)\s+[a-z0-9+/=]{12,}"), r"\1 ***"),
    # Backslashes: an object inside a string of another object. A scheme and its credentials are two words.
    (
        ("authorization",),
        re.compile(
            r"""(?i)\b((?:proxy-)?authorization)(\\*["']?\s*[:=]\s*\\*)"""
            r"""(?:"[^"]*"|'[^']*'|(?:[a-z]+\x20)?[^\s'",&;}\\]+)"""
        ),
        r"\1\2***",
    ),
    (
        ("key", "passw", "secret", "token"),
        re.compile(
            r"""(?i)\b(x-api-key|api[_\-\x20]?key(?:\x20provided)?|password|passwd|(?:client[_\-])?secret"""
            r"""|(?:access|refresh|id|auth|session)[_\-]token)(\\*["']?\s*[:=]\s*\\*)"""
            r"""(?:"[^"]*"|'[^']*'|[^\s'",&;}\\]+)"""
        ),
        r"\1\2***",
    ),
    (
        ("key=", "token=", "sig=", "signature="),
        re.compile(r"([?&](?:key|token|sig|signature)=)[^\s&#\"'\\]+"),
        r"\1***",
    ),
    (("sk-", "pk-", "rk-"), re.compile(r"\b(?:sk|pk|rk)-[\w\-]{8,}"), "***"),
    (
        ("hf", "gh", "github", "glpat", "xox", "gsk", "nvapi", "xai", "r8"),
        re.compile(r"\b(?:hf|gh[opsu]|github_pat|glpat|xox[abp]|gsk|nvapi|xai|r8)[_\-]\w{8,}"),
        "***",
    ),
    (
        ("aiza", "akia", "asia", "eyj"),
        re.compile(r"\b(?:AIza[\w\-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w\-]{8,}(?:\.[\w\-]+)*)"),
        "***",
    ),
    (("://",), re.compile(r"(?i)(\b[a-z][a-z0-9+.\-]{0,30}://)([^\s:@/?#]*):[^\s@/?#]+@"), r"\1\2:***@"),
)
#: all of those words
_WORDS = tuple(dict.fromkeys(word for words, _, _ in _SECRETS for word in words))

#: characters; what is sent as a key and is shorter stands for none, and the word is in many a text
SHORTEST_KEY = 8

#: a run that may be a key, a token or a hash
_RUN = re.compile(r"[\w+/\-]{32,}={0,2}", re.ASCII)
_USER = re.compile(r"(://)[^\s@/?#]+@")


def suspicious(text: str) -> bool:
    """Whether `redacted` might change `text`, or any part of it: a look at a few words, a hundredth of its cost."""
    # Ignoring case, a pattern takes the letters U+017F and U+212A for s and k; lower() does not.
    if not text.isascii():
        return True
    lowered = text.lower()
    for word in _WORDS:  # noqa: SIM110 - a generator costs twice the search, and this runs for every log line
        if word in lowered:
            return True
    return False


def redacted(text: str) -> str:
    """`text` without what looks like a key, a token or a password. Hashes stay: log lines name things by them."""
    lowered = text.lower() if text.isascii() else None
    for words, pattern, replacement in _SECRETS:
        if lowered is None or any(word in lowered for word in words):
            text = pattern.sub(replacement, text)
    return text


def without_key(text: str, key: str) -> str:
    """`text` without `key`, which need not look like one; a word in its place, such as `EMPTY`, is no secret."""
    return text.replace(key, "***") if len(key) >= SHORTEST_KEY else text


def redacted_strictly(text: str) -> str:
    """As `redacted`, and without long runs of hex or base64 and user names in URLs: for what others have written."""
    return _USER.sub(r"\1***@", _RUN.sub(_hidden, redacted(text)))


def _hidden(found: re.Match[str]) -> str:
    """*** for a run; the run itself where it is made of words, as the name of a model or a path is."""
    run = found[0]
    parts = re.split(r"[/_\-]", run)
    if any(len(part) >= 16 and _is_mixed(part) for part in parts):
        return "***"
    is_base64 = len(run) >= 40 and not set("_-") & set(run) and run.lower() != run != run.upper()
    return "***" if is_base64 and _is_mixed(run) else run


def _is_mixed(text: str) -> bool:
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text))
