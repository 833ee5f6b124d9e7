"""What endpoints count, and what cannot be true of it; windows from the words of a refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.capabilities import Place
from infra.token_estimates import LEAST, MOST, TYPICAL, Shares, TokenEstimates, checked, shares, told_window
from runtime.ports import TokenUsage

HERE, THERE = Place("http://a/v1", "m"), Place("http://a/v1", "other")


def test_a_place_that_has_counted_nothing_is_typical() -> None:
    """Four characters a token, rounded up; nothing has no tokens."""
    estimates = TokenEstimates()
    assert [estimates.tokens(HERE, characters) for characters in (0, 1, 4, 1000)] == [0, 1, 1, 250]
    assert TYPICAL == 0.25


def test_what_an_endpoint_counts_is_learnt_for_it_alone() -> None:
    """The first count is taken, later ones move the estimate, up faster than down."""
    estimates = TokenEstimates()
    estimates.learn(HERE, 1000, 400)
    assert (estimates.tokens(HERE, 1000), estimates.tokens(THERE, 1000)) == (400, 250)
    estimates.learn(HERE, 1000, 600)
    assert estimates.tokens(HERE, 1000) == 500
    estimates.learn(HERE, 1000, 400)
    assert estimates.tokens(HERE, 1000) == 490


@pytest.mark.parametrize("tokens", [-5, 0, 1, 10, 10_000, 2**40])
def test_absurd_counts_teach_nothing(tokens: int) -> None:
    """Neither first nor later, nor those of requests that are too short to tell."""
    estimates = TokenEstimates()
    estimates.learn(HERE, 1000, tokens)
    assert estimates.tokens(HERE, 1000) == 250
    estimates.learn(HERE, 1000, 400)
    estimates.learn(HERE, 1000, tokens)
    estimates.learn(HERE, 50, 200)
    assert estimates.tokens(HERE, 1000) == 400


@given(
    st.lists(st.tuples(st.integers(-10, 10**6), st.integers(-(10**6), 10**7))),
    st.integers(0, 10**7),
    st.integers(0, 99),
)
def test_whatever_is_learnt_an_estimate_is_bounded_and_grows(
    counted: list[tuple[int, int]], characters: int, more: int
) -> None:
    """Between the fewest and the most tokens that a text can have."""
    estimates = TokenEstimates()
    for one in counted:
        estimates.learn(HERE, *one)
    tokens = estimates.tokens(HERE, characters)
    assert characters * LEAST <= tokens <= characters * MOST + 1
    assert tokens <= estimates.tokens(HERE, characters + more)


def test_a_prompt_that_a_server_has_cut_in_silence_shows() -> None:
    """Far fewer tokens than ever for so many characters; it teaches nothing."""
    estimates = TokenEstimates()
    assert estimates.dropped(HERE, 100_000, 4096)
    assert estimates.dropped(HERE, 10_000, 1499)
    assert not estimates.dropped(HERE, 10_000, 1500)
    estimates.learn(HERE, 10_000, 2500)
    assert estimates.dropped(HERE, 40_000, 4096)
    assert not estimates.dropped(HERE, 40_000, 8000)
    assert not estimates.dropped(HERE, 100, 1)
    estimates.learn(HERE, 40_000, 4096)
    assert estimates.tokens(HERE, 10_000) == 2500


@pytest.mark.parametrize(
    ("reason", "window", "prompt"),
    [
        ("maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.", 8192, 9001),
        ("maximum context length is 4,097 tokens. However, you requested 4,120 tokens (3,120 in the messages, 1,000 in "
         "the completion).", 4097, 3120),
        ("maximum context length is 131072 tokens. However, you requested 351430 tokens.", 131072, 351430),
        ("maximum context length is 32768 tokens. However, you requested about 40000 tokens", 32768, 40000),
        ("'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 "
         "tokens and your request has 200 input tokens (16384 > 8192 - 200).", 8192, 200),
        ("You passed 5000 input tokens, however the model's context length is only 4096 tokens.", 4096, 5000),
        ("You passed 4001 input tokens and requested 100 output tokens. However, the model's context length is only "
         "4096 tokens", 4096, 4001),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096, 5000),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096, 5000),
        ("Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of "
         "33000 tokens: 32000 tokens from the input messages and 1000 tokens for the completion.", 32768, 32000),
        ("400 the request exceeds the available context size, try increasing it (400, exceed_context_size_error, "
         "n_prompt_tokens 9001, n_ctx 4096)", 4096, 9001),
        ("request (9001 tokens) exceeds the available context size (4096 tokens), try increasing it", 4096, 9001),
        ("input (5000 tokens) is too large to process. increase the physical batch size (current batch size: 2048)",
         2048, 5000),
        ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]", 129024, None),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
         4096, 5000),
        ("`inputs` must have less than 1024 tokens. Given: 2000", 1024, 2000),
        ("Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
         32768, 40000),
        ("Your request exceeded model token limit: 8192 (requested: 9000)", 8192, 9000),
        ("maximum prompt length is 131072 but the request contains 200000 tokens.", 131072, 200000),
        ("total number of tokens in the prompt cannot exceed 4081 - received 5000", 4081, 5000),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200000, 210000),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length", 200000,
         190000),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576, 1200000),
        ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.", 272000,
         300000),
        ("Prompt has 32769 tokens, but the configured context size is 32768 tokens", 32768, 32769),
        ("Input length 35000 exceeds the maximum length 32768", 32768, 35000),
        ("The input token length 40000 is longer than the maximum 32768", 32768, 40000),
        ("Prompt length 5000 is greater than max_seq_len 4096", 4096, 5000),
        ("The input prompt length 5000 exceeds session_len 4096", 4096, 5000),
        ("length of prompt_tokens (40000) must be less than max_seq_len (32768).", 32768, None),
        ("The provided prompt is 16000 tokens long, so generating 1024 tokens requires a sequence length of 17024, but "
         "the maximum supported sequence length is just 16384!", 16384, 16000),
        ("prompt token count of 70000 exceeds the limit of 64000", 64000, 70000),
        ("Please reduce the length of the messages. Current length is 9000 while limit is 8192", 8192, 9000),
        ("The estimated number of input and maximum output tokens (9000) exceeded this model context window limit "
         "(8192).", 8192, 9000),
        ("Request too large for m on tokens per minute (TPM): Limit 10000, Requested 14000.", 10000, 14000),
    ],
)  # fmt: skip
def test_a_refusal_tells_the_window_and_the_prompt(reason: str, window: int | None, prompt: int | None) -> None:
    """In each server's own words."""
    assert told_window(reason) == (window, prompt)


@pytest.mark.parametrize("reason", ["", "the input length exceeds the context length", "Prompt 超长", "9" * 9000])
def test_a_refusal_without_numbers_tells_nothing(reason: str) -> None:
    """Nothing is guessed."""
    assert told_window(reason) is None


@pytest.mark.parametrize(
    ("window", "max_tokens", "expected"),
    [
        (8192, 1024, Shares(8192 - 1024 - 163, 1024)),
        (8192, 16384, Shares(8192 - 4096 - 163, 4096)),
        (2048, 1024, Shares(2048 - 1024 - 40, 1024)),
        (4, 1024, Shares(1, 2)),
        (1, 1, Shares(1, 1)),
    ],
)
def test_a_window_is_shared_between_prompt_and_answer(window: int, max_tokens: int, expected: Shares) -> None:
    """The answer gets what it may have, and no more than half."""
    assert shares(window, max_tokens) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TokenUsage(prompt_tokens=250, completion_tokens=50), (250, 50, None, None)),
        (TokenUsage(), (None, None, 250, 50)),
        (TokenUsage(prompt_tokens=0, completion_tokens=0), (None, None, 250, 50)),
        (TokenUsage(prompt_tokens=10**12, completion_tokens=10**9), (None, None, 250, 50)),
        (TokenUsage(prompt_tokens=-5, completion_tokens=-1), (None, None, 250, 50)),
        # A system prompt of the server's own, and thinking that is not shown, may be long.
        (TokenUsage(prompt_tokens=9000, completion_tokens=60_000), (9000, 60_000, None, None)),
        (TokenUsage(prompt_tokens=250), (250, None, None, 50)),
    ],
)
def test_counts_that_cannot_be_true_are_unknown_and_estimated(
    given: TokenUsage, expected: tuple[int | None, int | None, int | None, int | None]
) -> None:
    """Of a request of 1000 characters and an answer of 200."""
    usage = checked(given, 1000, 200)
    assert expected == (
        usage.prompt_tokens, usage.completion_tokens, usage.estimated_prompt_tokens, usage.estimated_completion_tokens,
    )  # fmt: skip


def test_an_answer_of_nothing_may_count_nothing() -> None:
    """0 is a count there."""
    usage = checked(TokenUsage(prompt_tokens=9, completion_tokens=0), 30, 0)
    assert (usage.completion_tokens, usage.estimated) == (0, False)


@pytest.mark.parametrize(
    ("cached", "reasoning", "expected"),
    [(100, 10, (100, 10)), (251, 51, (None, None)), (-1, -1, (None, None)), (0, 0, (0, 0)), (None, None, (None, None))],
)
def test_a_part_is_no_larger_than_its_whole(
    cached: int | None, reasoning: int | None, expected: tuple[int | None, int | None]
) -> None:
    """Else it is unknown."""
    given = TokenUsage(prompt_tokens=250, completion_tokens=50, cached_tokens=cached, reasoning_tokens=reasoning)
    usage = checked(given, 1000, 200)
    assert (usage.cached_tokens, usage.reasoning_tokens) == expected
