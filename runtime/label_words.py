"""The words that name an attributed stage beyond a doubt: synonyms, and how models write it in other languages.

A word is listed where it can mean nothing else. `external`, `unknown`, `environment` may mean `none` and may mean that
the model does not know: they are not.
"""

from events.ids import Label

#: language -> label -> words, in lower case
LABEL_WORDS: dict[str, dict[Label, tuple[str, ...]]] = {
    "English": {
        "planning": ("planning", "plan", "planner", "planning stage", "plan stage", "planning_stage", "planning phase"),
        "execution": (
            "execution", "execute", "executor", "executing", "execution stage", "execution_stage", "execution phase",
        ),
        "both": ("both", "both stages", "both of them"),
        "none": ("none", "neither", "neither stage", "no stage", "none of them", "neither planning nor execution"),
    },
    "Chinese": {
        "planning": ("规划", "计划", "规划阶段", "计划阶段", "規劃", "計劃", "規劃階段"),
        "execution": ("执行", "执行阶段", "執行", "執行階段"),
        "both": ("两者", "两者都", "两者都有", "两者皆是", "兩者", "兩者都"),
        "none": ("无", "都不是", "两者都不是", "均无", "皆无", "無", "兩者都不是"),
    },
    "Japanese": {
        "planning": ("計画", "計画段階", "プランニング"),
        "execution": ("実行", "実行段階"),
        "both": ("両方", "両方とも"),
        "none": ("なし", "どちらでもない", "どちらもなし"),
    },
    "Korean": {
        "planning": ("계획", "계획 단계"),
        "execution": ("실행", "실행 단계"),
        "both": ("둘 다", "모두"),
        "none": ("없음", "둘 다 아님"),
    },
    "German": {
        "planning": ("planung", "planungsphase"),
        "execution": ("ausführung", "ausfuehrung", "durchführung", "ausführungsphase"),
        "both": ("beide", "beides", "beide phasen"),
        "none": ("keine", "keines", "keine von beiden", "keines von beiden"),
    },
    "French": {
        "planning": ("planification", "phase de planification"),
        "execution": ("exécution", "phase d'exécution"),
        "both": ("les deux", "les deux phases"),
        "none": ("aucun", "aucune", "aucun des deux", "aucune des deux"),
    },
    "Spanish": {
        "planning": ("planificación", "planificacion"),
        "execution": ("ejecución", "ejecucion"),
        "both": ("ambos", "ambas"),
        "none": ("ninguno", "ninguna", "ninguno de los dos"),
    },
    "Portuguese": {
        "planning": ("planejamento", "planeamento"),
        "execution": ("execução", "execucao"),
        "both": ("ambos os estágios",),
        "none": ("nenhum", "nenhuma"),
    },
    "Italian": {
        "planning": ("pianificazione",),
        "execution": ("esecuzione",),
        "both": ("entrambi", "entrambe"),
        "none": ("nessuno", "nessuna"),
    },
    "Russian": {
        "planning": ("планирование",),
        "execution": ("исполнение", "выполнение"),
        "both": ("оба", "обе", "оба этапа"),
        "none": ("ни один", "ни одно", "ни один из них"),
    },
}  # fmt: skip

#: word -> label
LABEL_OF: dict[str, Label] = {
    word: label for words in LABEL_WORDS.values() for label, listed in words.items() for word in listed
}
