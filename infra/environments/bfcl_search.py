"""Search tools for BFCL's web questions where there is no key for a search service: an own corpus, or an honest error.

Runs inside the BFCL host. The corpus is a JSON-lines file of {"url", "title", "text"}.
"""

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

from rank_bm25 import BM25Plus  # type: ignore[import-not-found] # installed where this runs

_NO_NETWORK = "There is no network: searching the web and opening pages is not possible in this run."
_SNIPPET = 300


class WebSearchAPI:
    """The tools of the official class of this name, over `corpus`; without one they say that there is no network."""

    #: documents to search; None = no network
    corpus: ClassVar[list[dict[str, str]] | None] = None

    def __init__(self) -> None:
        self.show_snippet = True

    def _load_scenario(self, initial_config: dict[str, Any], long_context: bool = False) -> None:
        del long_context
        self.show_snippet = bool(initial_config["show_snippet"])

    def search_engine_query(self, keywords: str, max_results: int = 10, region: str = "wt-wt") -> Any:
        """The best documents for `keywords`, by BM25+."""
        del region
        if not self.corpus:
            return {"error": _NO_NETWORK}
        index = BM25Plus([f"{page['title']} {page['text']}".lower().split() for page in self.corpus])
        scores = index.get_scores(keywords.lower().split())
        ranked = sorted(range(len(self.corpus)), key=lambda place: (-scores[place], place))
        found = [self.corpus[place] for place in ranked[: int(max_results)]]
        return [
            {"title": page["title"], "href": page["url"]}
            | ({"body": page["text"][:_SNIPPET]} if self.show_snippet else {})
            for page in found
        ]

    def fetch_url_content(self, url: str, mode: str = "raw") -> dict[str, str]:
        """The text of a document of the corpus."""
        del mode
        if not self.corpus:
            return {"error": _NO_NETWORK}
        for page in self.corpus:
            if page["url"] == url:
                return {"content": page["text"]}
        return {"error": f"An error occurred while fetching {url}: 404 Client Error: Not Found"}


class GoogleSearch:
    """What the official search class needs of the `serpapi` package, which has no wheel: one GET request."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters

    def get_dict(self) -> Any:
        """The service's answer.

        Raises:
            OSError: it did not answer; the text holds the HTTP status.
        """
        query = {key: value for key, value in self._parameters.items() if value is not None} | {"output": "json"}
        url = f"https://serpapi.com/search?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)


def corpus_at(path: str) -> list[dict[str, str]]:
    """The documents of a corpus file.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no document.
    """
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def has_key() -> bool:
    """Whether there is a key for the search service."""
    return bool(os.environ.get("SERPAPI_API_KEY"))
