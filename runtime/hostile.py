"""What a text may hold that is meant for somebody else than its reader: a terminal, a browser, a model's template.

Everything is looked for in the text as it stands and in what it can be read as: in Unicode's compatibility form,
without characters that show nothing, with entities and escapes resolved, with letters of other alphabets as those they
look like; phrases also with marks between their words, letters set apart, and digits or accents for letters.
The phrases are a bounded list in eighteen languages: what is commonly tried, and nobody should rest on it alone. What
is kept stands in a prompt as data between marks (`runtime.prompting`).
"""

import html
import re
import unicodedata
from base64 import b32decode, b64decode
from collections.abc import Callable, Iterator

from events.late import late_pattern

#: Unicode's direction marks
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: line and paragraph separators end a line like a line feed, for some readers only
_BREAKS = frozenset("\u2028\u2029")
#: letters that show nothing, variation selectors beside those of emoji, and the plane of tags
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufdd0-\ufdef\ufe00-\ufe0d\ufffe\uffff\U000e0000-\U000e0fff]"
)
#: joiners that scripts and emoji need, one at a time
_JOINERS = "\u200c\u200d"
_NO_JOINERS = dict.fromkeys(map(ord, _JOINERS))
_JOINED = re.compile(f"[{_JOINERS}]{{2,}}")
#: between two of these they join nothing
_SPLIT = re.compile(f"[A-Za-z0-9][{_JOINERS}][A-Za-z0-9]")
#: marks that no script puts on one letter
_MARKS = 6

#: letters of Cyrillic, Greek, Armenian and phonetics that look like a Latin one
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝвнкмтАЕОРСУХІЈЅНКМТВοναικρτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧօսհոցᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aeopcyxijshdqwbhkmtAEOPCYXIJSHKMTBovaikptuxABEZHIKMNOPTYXouhngabcdefghijklmnoprstuvwyz",
)
_WORD = re.compile(r"[^\W\d_]+")

_ANSI = re.compile(
    r"\x1b|\x9b|[\u241b\u2409]\[|\\(?:x1b|0?33|e|u001b|u\{1b\}|27|N\{ESC(?:APE)?\})\s?[\[\]]|(?:\b0x1b|\bESC)[\[\]]"
    r"|%1b(?:\[|%5b)|\^\[\[|&#(?:27|x0*1b);",
    re.IGNORECASE,
)
_HTML = re.compile(
    r"""</?(?:script|img|image|iframe|svg|style|object|embed|form|meta|link|body|html|head|div|span|input
        |button|video|audio|base|math|template|textarea|marquee|details|frameset|noscript|applet|picture|font|br
        |center|a\s+href)\b
      | <!--|<!\[CDATA\[|<\?(?:xml|php)|<[a-z][\w:-]{0,40}\s[^<>]{0,200}=\s{0,9}["']
      | <[a-z][\w:-]{0,40}\s{1,9}[a-z-]{2,30}=[^\s<>=]
      | \bon(?:error|load|click|mouseover|focus)\s{0,9}=""",
    re.IGNORECASE | re.VERBOSE,
)
_LINK = re.compile(
    r"""\b[a-z][a-z0-9+.-]{0,20}://\S|\b(?:javascript|vbscript):\S|\bmailto:\S|\bdata:[a-z]+/[a-z0-9.+-]+[;,]
      | \bwww\.[a-z0-9-]|\w\[\.\]\w|!\[[^\]\n]{0,200}\][(\[]
      | \[[^\]\n]{0,200}\]\(\s{0,9}(?:[a-z][a-z0-9+.-]{0,20}:|//|www\.)""",
    re.IGNORECASE | re.VERBOSE,
)
#: what chat templates of the common families set turns and tools apart with: after `<`, and after `[`
TEMPLATE_TAGS = (
    r"\|[^|<>\n]{1,60}\|>|</?SYS>>"
    r"|/?(?:s|bos|eos|pad|unk|think|thinking|reasoning|tool_calls?|tool_response|function_calls?|function_response)>"
    r"|/?(?:start_of_turn|end_of_turn|start_of_image|end_of_utterance|begin_of_text|end_of_text|system|assistant)>"
    r"|(?:unused|reserved_|extra_id_)[0-9]{1,4}>|function=[^<>\s]{1,60}>|_(?:user|bot|system|end)>"
)
TEMPLATE_BRACKETS = (
    r"/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|ASSISTANT|THINK|gMASK|UNUSED_TOKEN_[0-9]{1,4})\]"
    r"|\|(?:Human|AI|user|assistant|system)\|\]"
)
_ROLE = re.compile(
    rf"""<(?:{TEMPLATE_TAGS})|\[(?:{TEMPLATE_BRACKETS})
      | ^[ \t>*#]{{0,20}}(?:system|assistant|developer|human|user|ipython)[ \t*]{{0,5}}:
      | ^[ \t]{{0,20}}\#{{2,3}}[ \t]{{0,5}}(?:system|assistant|instructions?|response|human|user)\s?:?\s{{0,5}}$""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
#: what our own prompts set their parts apart with (`runtime.prompting`)
SECTION_MARKS = "task|experiences|plan|trajectory|outcome|policy|tools|existing|new"
_SECTION = re.compile(
    rf"<\s{{0,9}}/?\s{{0,9}}(?:{SECTION_MARKS})\s{{0,9}}>|<\s{{0,9}}/\s{{0,9}}(?:{SECTION_MARKS})\b[^<>]{{0,80}}>"
    r"|\[\s{0,9}[PE]\s{0,9}[0-9]{1,4}\s{0,9}\]",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"""\b(?:sk|pk|rk)-[\w-]{12,}|\b(?:gh[opsu]|github_pat|glpat|xox[abp]|gsk|nvapi|hf)[_-]\w{12,}
      | \bAIza[\w-]{30,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[\w-]{8,}\.[\w-]{8,}|-----BEGIN\s[A-Z ]{0,30}KEY
      | \b(?:bearer|basic)\s+[\w.~+/=-]{16,}
      | \b(?:api[_ -]?key|password|passwd|client[_-]secret|(?:access|refresh|auth|session)[_-]token)
        ["']?\s{0,9}[:=]\s{0,9}["']?(?=[^\s"']{0,60}[0-9])[^\s"']{8,}
      | [a-z][a-z0-9+.-]{1,20}://[^\s:@/]{1,60}:[^\s@/]{1,100}@""",
    re.IGNORECASE | re.VERBOSE,
)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{16,}")
_LONG_RUN = 48
_HEX = re.compile(
    r"\b[0-9a-f]{40,}\b|(?:\\x[0-9a-f]{2}|%[0-9a-f]{2}|\\u[0-9a-f]{4}|&#x?[0-9a-f]{1,6};){4,}"
    r"|(?:\b[0-9a-f]{2}\s){11,}|(?:\b[01]{8}\s){3,}",
    re.IGNORECASE,
)
#: a text that is spelled in them, characters, and how addresses write base64
_SPELLED = 10
_URL_SAFE = str.maketrans("-_", "+/")
#: an escape of one character, as JSON, C or an address spells it
_ESCAPE = re.compile(r"\\u\{?([0-9a-f]{4})\}?|\\x([0-9a-f]{2})|%([0-9a-f]{2})", re.IGNORECASE)
#: marks between the words of a phrase, and letters set apart
_BETWEEN = re.compile(r"[*_~`\"“”|/\\()\[\]{}<>=+-]+|\.{2,}|…")
_SPACED = re.compile(r"\b\w(?: \w\b){3,}")
#: digits and signs for letters
_LEET = str.maketrans("013457@$", "oieastas")
_LEETED = re.compile(r"[A-Za-z][013457@$]|[013457@$][A-Za-z]")

#: who warns of it does not ask for it
_NOT = r"(?<!not\s)(?<!n['’]t\s)(?<!never\s)"
_IGNORE = _NOT + r"\b(?:ignore|disregard|forget|override|bypass)\s+"
#: language -> phrases that speak to a model about its instructions instead of about the task
INJECTIONS: dict[str, tuple[str, ...]] = {
    "English": (
        _IGNORE + r"(?:(?:all|any|every)\s+|any\s+and\s+all\s+)?(?:of\s+)?(?:the\s+|your\s+|these\s+|my\s+)?"
        r"(?:(?:previous|prior|earlier|above|preceding|foregoing|other|system|original|initial)\s+)+"
        r"(?:instructions?|prompts?|rules?|messages?|directions?|guidelines?|commands?|training)",
        _IGNORE + r"(?:all|everything|anything|what)\s+(?:of\s+)?(?:the\s+)?(?:you\s+were\s+told|above|before)",
        _IGNORE + r"the\s+above(?:\s*[.!;:]|\s+and\b)",
        _IGNORE + r"(?:all\s+)?(?:your|the\s+given)\s+(?:instructions|rules|guidelines|restrictions)",
        _IGNORE + r"(?:all\s+)?(?:of\s+)?(?:the|these|those)\s+(?:instructions|rules|guidelines)\s+"
        r"(?:above|before|so\s+far|you\s+were)",
        _IGNORE + r"(?:all|any)\s+(?:safety\s+)?(?:restrictions|guidelines|safeguards)",
        r"\b(?:do\s+not|don['’]?t|never|stop)\s+(?:follow|obey)(?:ing)?\s+(?:all\s+|any\s+)?"
        r"(?:your|(?:the\s+)?(?:previous|above|system|original))\s+(?:(?:previous|earlier|original)\s+)?"
        r"(?:instructions|rules|guidelines|prompt)",
        r"\byou\s+are\s+now\s+(?:an?\s|in\s+(?:developer|debug|admin|god|jailbreak)\s+mode|dan\b|unrestricted)",
        r"\byou\s+(?:have\s+no|are\s+free\s+of|are\s+no\s+longer\s+bound\s+by)\s+(?:\w+\s+)?"
        r"(?:restrictions|limits|rules|guidelines|filters)\b",
        r"\bfrom\s+now\s+on,?\s+(?:you\b|ignore\b)",
        r"\b(?:system|developer)\s+prompt\b",
        r"\b(?:reveal|print|repeat)\s+(?:your|the)\s+(?:instructions|prompt|secrets?|api\s+key)",
        r"\b(?:reveal|print|repeat|show|output)\s+(?:me\s+)?your\s+(?:full\s+|initial\s+|hidden\s+)?"
        r"(?:instructions|prompt|system\s+message)",
        r"\bwhat\s+(?:are|were)\s+your\s+instructions\b",
        r"\b(?:new|updated|secret|hidden)\s+(?:system\s+)?instructions?\s*:",
        r"\byour\s+(?:new|real|true|actual)\s+(?:task|goal|role|mission|purpose|instructions?)\s+(?:is|are)\b",
        r"\b(?:system|admin|administrator)\s+override\b",
        r"\bas\s+an\s+ai\s+(?:language\s+)?model\b",
        r"\b(?:label|mark|rate|score|flag|list|name|trust|credit)\s+(?:this|these)\s+"
        r"(?:memory|memories|experiences?|notes?)\b",
        r"\b(?:mark|label|list|name|flag|report)\s+(?:this|it|me)\s+as\s+(?:misleading|helpful)\b",
        r"\bexfiltrate\b",
        _NOT + r"\b(?:pretend|act)\s+(?:to\s+be|as\s+if\s+you|as\s+an?\s+(?:unrestricted|different|jailbroken))",
        r"\bdo\s+anything\s+now\b|\bjailbreak",
        r"\bthis\s+(?:memory|experience|note)\s+(?:overrides|takes\s+precedence|has\s+priority)",
        r"\b(?:send|forward|post|upload)\s+(?:the|all|your)\s+(?:conversation|history|secrets?|credentials|keys)\b",
    ),
    "German": (
        r"\b(?:ignoriere|ignorier|vergiss|missachte)\s+(?:alle\s+|sämtliche\s+)?(?:deine\s+|die\s+)?"
        r"(?:vorherigen|vorigen|bisherigen|obigen|früheren)\s+\w*(?:anweisung|instruktion|regel|befehl)\w*",
        r"\bbefolge\s+(?:die|deine)\s+(?:vorherigen|bisherigen|obigen|früheren)\s+\w*(?:anweisung|regel)\w*\s+nicht",
        r"\bdu\s+bist\s+(?:jetzt|nun|ab\s+jetzt)\s+(?:ein|eine)\b",
    ),
    "French": (
        r"\b(?:ignore[zr]?|oublie[zr]?)\s+(?:toutes\s+)?(?:les|tes|vos|ces)\s+(?:instructions|consignes|règles)\s+"
        r"(?:précédentes|antérieures|ci-dessus)",
        r"\b(?:oublie[zr]?|ignore[zr]?)\s+tout\s+ce\s+qui\s+précède",
        r"\bne\s+(?:tiens|tenez)\s+pas\s+compte\s+des\s+(?:instructions|consignes)\s+précédentes",
        r"\b(?:tu\s+es|vous\s+êtes)\s+(?:maintenant|désormais)\s+une?\b",
    ),
    "Spanish": (
        r"\b(?:ignor[ae]|olvid[ae]|descart[ae])\s+(?:todas\s+)?(?:las|tus|sus)\s+(?:instrucciones|reglas|órdenes)\s+"
        r"(?:anteriores|previas)",
        r"\b(?:haz\s+caso\s+omiso\s+de|no\s+sigas)\s+(?:todas\s+)?las\s+instrucciones\s+(?:anteriores|previas)",
        r"\bahora\s+eres\s+un[ao]?\b",
    ),
    "Portuguese": (
        r"\b(?:ignore|esqueça|desconsidere)\s+(?:todas\s+)?(?:as\s+)?(?:suas\s+)?(?:instruções|regras)\s+"
        r"(?:anteriores|prévias)",
    ),
    "Italian": (
        r"\b(?:ignora|dimentica)\s+(?:tutte\s+)?(?:le\s+|tutte\s+le\s+)?(?:tue\s+)?(?:istruzioni|regole)\s+precedenti",
    ),
    "Russian": (
        r"\b(?:игнорируй|игнорируйте|забудь|забудьте)\s+(?:все\s+)?(?:предыдущие|прошлые|прежние)\s+"
        r"(?:инструкции|указания|правила|команды)",
        r"\bне\s+следуй(?:те)?\s+(?:предыдущим|прошлым|прежним)\s+(?:инструкциям|указаниям|правилам)",
    ),
    "Chinese": (
        r"(?<![不勿别])(?<!不要)(?:忽略|无视|無視|忘记|忘記|不要理会)(?:掉)?(?:你)?(?:所有|全部|一切)?(?:的)?(?:之前|以上|先前|前面|上述|此前)(?:的)?(?:所有|全部)?(?:的)?"
        r"(?:指令|指示|提示|规则|規則|命令)",
        r"(?:你现在|从现在(?:开始|起)[,，]?你)是一[个名位]|系统提示词",
    ),
    "Japanese": (
        r"(?:これまで|以前|前|上記|先ほど)の(?:すべての|全ての)?(?:指示|命令|ルール|プロンプト)を(?:すべて|全て)?(?:無視|忘れ)",
        r"システムプロンプト",
    ),
    "Korean": (r"(?:이전|위의?|앞의)\s*(?:모든\s*)?(?:지시|명령|규칙|지침)\S{0,3}\s*(?:모두\s*)?(?:무시|잊)",),
    "Dutch": (
        r"\b(?:negeer|vergeet)\s+(?:alle\s+)?(?:de\s+)?(?:eerdere|vorige|voorgaande|bovenstaande)\s+"
        r"(?:instructies|opdrachten|regels)",
    ),
    "Polish": (
        r"\b(?:zignoruj|ignoruj|zapomnij|pomiń)\s+(?:o\s+)?(?:wszystki\w{1,3}\s+)?"
        r"(?:poprzedni\w{0,3}|wcześniejsz\w{1,3}|powyższ\w{1,3})\s+(?:instrukcj|polece|zasad)",
    ),
    "Ukrainian": (
        r"\b(?:ігноруй(?:те)?|забудь(?:те)?)\s+(?:усі\s+|всі\s+)?(?:попередні|минулі)\s+"
        r"(?:інструкції|вказівки|правила)",
    ),
    "Turkish": (
        r"\b(?:önceki|yukarıdaki)\s+(?:tüm\s+|bütün\s+)?(?:talimatları|komutları|kuralları)\s+"
        r"(?:yok\s+say|unut|görmezden\s+gel|dikkate\s+alma)",
    ),
    "Arabic": (r"(?:تجاهل|انس)\s+(?:جميع\s+|كل\s+)?(?:التعليمات|الأوامر|القواعد)\s+(?:السابقة|أعلاه)",),
    "Hindi": (r"(?:पिछले|उपरोक्त)\s+(?:सभी\s+)?(?:निर्देशों|आदेशों|नियमों)\s+को\s+(?:अनदेखा|भूल)",),
    "Vietnamese": (
        r"\b(?:bỏ\s+qua|quên|phớt\s+lờ)\s+(?:tất\s+cả\s+|mọi\s+)?(?:các\s+)?"
        r"(?:hướng\s+dẫn|chỉ\s+dẫn|lệnh|quy\s+tắc)\s+(?:trước|ở\s+trên)",
    ),
    "Indonesian": (r"\b(?:abaikan|lupakan)\s+(?:semua\s+)?(?:instruksi|perintah|aturan)\s+(?:sebelumnya|di\s+atas)",),
}  # fmt: skip
_INJECTION = late_pattern("|".join(one for phrases in INJECTIONS.values() for one in phrases), re.IGNORECASE)


def findings(text: str) -> Iterator[tuple[str, bool]]:
    """Each of the reasons of `runtime.lint` that asks the text alone, and whether it holds."""
    # Of printable ASCII text, none of these.
    suspect = "" if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable() else text
    yield "control_character", any(_is_control(one) for one in suspect)
    yield "bidi_character", any(one in _BIDI for one in suspect)
    yield "invisible_character", bool(suspect) and _hides(suspect)
    yield "mark_flood", bool(suspect) and _is_flooded(suspect)
    yield "homoglyph", bool(suspect) and any(_is_mixed(word) for word in _WORD.findall(plain(suspect)))
    readings = _readings(text)
    for reason, pattern in _PATTERNS.items():
        read = _said_otherwise(readings) if reason == "injection" else readings
        yield reason, any(pattern.search(one) for one in read if _may_hold(reason, one))
    yield "blob", any(_is_encoded(run) for run in _RUN.findall(text)) or _HEX.search(text) is not None


def _may_hold(reason: str, text: str) -> bool:
    """Whether a look at a few words leaves it open that `text` has `reason`: the dear patterns are asked seldom."""
    if not text.isascii():
        return True
    lowered = text.lower()
    if reason == "injection":
        return "jailbreak" in lowered or not _INJECTING.isdisjoint(_LETTERS.findall(lowered))
    return reason not in _SIGNS or any(sign in lowered for sign in _SIGNS[reason])


#: of each of these reasons, what stands in lower case in every ASCII text that has it, one of them
_SIGNS = {
    "link": ("://", "script:", "mailto:", "data:", "www.", "[.]", "](", "]["),
    "secret": (
        "sk-", "pk-", "rk-", "gho", "ghp", "ghs", "ghu", "github_pat", "glpat", "xox", "gsk", "nvapi", "hf", "aiza",
        "akia", "asia", "eyj", "-----begin", "bearer", "basic", "key", "passw", "secret", "token", "://",
    ),
}  # fmt: skip
#: a word of every phrase of `INJECTIONS` that can be written in ASCII, but for `jailbreak`, which may go on
_INJECTING = frozenset((
    "ignore", "disregard", "forget", "override", "now", "prompt", "reveal", "print", "repeat", "new", "pretend", "act",
    "anything", "memory", "experience", "note", "send", "forward", "post", "upload", "ignoriere", "ignorier",
    "vergiss", "missachte", "du", "ignorez", "ignorer", "oublie", "oubliez", "oublier", "tu", "ignora", "olvida",
    "olvide", "descarta", "descarte", "ahora", "desconsidere", "dimentica", "bypass", "follow", "following", "obey",
    "obeying", "restrictions", "limits", "rules", "guidelines", "filters", "show", "output", "instructions", "updated",
    "secret", "hidden", "real", "true", "actual", "ai", "memories", "experiences", "notes", "misleading", "helpful",
    "exfiltrate", "befolge", "haz", "sigas", "negeer", "vergeet", "zignoruj", "ignoruj", "zapomnij", "abaikan",
    "lupakan",
))  # fmt: skip
_LETTERS = re.compile("[a-z]+")

_PATTERNS = {
    "ansi_escape": _ANSI,
    "html": _HTML,
    "link": _LINK,
    "injection": _INJECTION,
    "role_marker": _ROLE,
    "section_mark": _SECTION,
    "secret": _SECRET,
}


def seen(text: str) -> str:
    """`text` without what shows nothing; joiners stay where they stand alone."""
    return text if text.isascii() else _JOINED.sub("", text.translate(_Shown()))


class _Shown(dict[int, int | None]):
    """Code point -> itself, or nothing where it shows nothing."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if _is_unseen(chr(code)) else code
        return self[code]


class _Alike(dict[int, int]):
    """Code point -> the one it is compatible with, where that is one."""

    def __missing__(self, code: int) -> int:
        like = unicodedata.normalize("NFKC", chr(code))
        self[code] = ord(like) if len(like) == 1 else code
        return self[code]


def alike(text: str) -> str:
    """`text` with each character as the one it is compatible with, at the same place."""
    return text if text.isascii() else text.translate(_Alike())


def plain(text: str) -> str:
    """`text` in compatibility form, without what shows nothing and without joiners."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    # Ten times faster for the hundred thousand short texts of a large trajectory: all else that shows nothing is
    # what Python does not print.
    if text.isprintable() and _UNSEEN.search(text) is None:
        return text
    return text.translate(_Shown(_NO_JOINERS))


def _readings(text: str) -> list[str]:
    """All that `text` can be read as, itself first."""
    read = [text, plain(text)]
    # Twice: an entity may be spelled with one.
    read += [plain(html.unescape(html.unescape(one))) for one in read if "&" in one]
    read += [plain(_ESCAPE.sub(_spelled, one)) for one in read if "\\" in one or "%" in one]
    read += [one.translate(_LOOKALIKES) for one in read if not one.isascii()]
    return list(dict.fromkeys(read))


def _spelled(escape: re.Match[str]) -> str:
    return chr(int(next(one for one in escape.groups() if one), 16))


def _said_otherwise(readings: list[str]) -> list[str]:
    """Further readings of a phrase: with marks between its words, letters set apart, accents or digits for letters."""
    read = list(readings)
    read += [_SPACED.sub(_joined, _BETWEEN.sub(" ", one)) for one in readings]
    read += [_without_marks(one) for one in read if not one.isascii()]
    read += [one.translate(_LEET) for one in read if _LEETED.search(one)]
    return list(dict.fromkeys(read))


def _joined(letters: re.Match[str]) -> str:
    return letters[0].replace(" ", "")


def _without_marks(text: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))


def _is_control(one: str) -> bool:
    return (unicodedata.category(one) == "Cc" and one not in "\n\t") or one in _BREAKS


def _is_unseen(one: str) -> bool:
    return (unicodedata.category(one) in ("Cf", "Co") and one not in _JOINERS) or _UNSEEN.match(one) is not None


def _hides(text: str) -> bool:
    return (
        any(_is_unseen(one) and one not in _BIDI for one in text)
        or _JOINED.search(text) is not None
        or _SPLIT.search(text) is not None
    )


def _is_flooded(text: str) -> bool:
    """Whether marks stand on one letter that run over the lines beside it."""
    marks = 0
    for one in unicodedata.normalize("NFC", text):
        marks = marks + 1 if unicodedata.category(one) in ("Mn", "Me") else 0
        if marks >= _MARKS:
            return True
    return False


def _is_mixed(word: str) -> bool:
    """Whether a Latin word holds letters of another alphabet that look like Latin ones: `μs` does not."""
    latin = sum(one.isascii() for one in word)
    return latin >= 2 and latin < len(word) and any(ord(one) in _LOOKALIKES for one in word)


def _is_encoded(run: str) -> bool:
    """Whether a run spells a text, or is long and no path or name made of words."""
    if any(_spells(decode, run) for decode in (_base64, b32decode, bytes.fromhex)):
        return True
    return (
        len(run) >= _LONG_RUN
        and any(map(str.isdigit, run))
        and run.lower() != run != run.upper()
        and max(map(len, re.split(r"[/_-]", run))) >= 24
    )


def _spells(decode: Callable[[str], bytes], run: str) -> bool:
    try:
        said = decode(run).decode("ascii")
    except ValueError:
        return False
    return len(said) >= _SPELLED and said.isprintable()


def _base64(run: str) -> bytes:
    return b64decode(run.rstrip("=").translate(_URL_SAFE) + "==", validate=False)
