"""Texts that the doctor sends: short and long, in several languages and scripts."""

from __future__ import annotations

# in requests of the table of clients: different enough that each vector is nearest to its own text
TEXTS = (
    "A cenote is a natural pit that exposes groundwater.",
    "The price of bread has risen again this year.",
    "How do I change the password of my account?",
)
QUERY = "What is the capital of France?"
DOCUMENTS = (
    "Python is a programming language.",
    "The capital of France is Paris.",
    "Berlin is the capital of Germany.",
    "Bread is baked in an oven.",
)
RELEVANT_DOCUMENT = 1  # of QUERY

# the texts of the reference vectors: changing one means to compute the vectors again
REFERENCE_TEXTS = (
    "hello",
    "A cenote is a natural pit that exposes groundwater.",
    "What is the capital of France?",
    "The capital of France is Paris.",
    "Der Fluss fließt durch die alte Stadt.",
    "El precio del pan ha subido este año.",
    "def mean(values):\n    return sum(values) / len(values)",
    "Embeddings map texts to vectors, so that texts with a similar meaning are close to each other. Search engines "
    "compute the vectors of all documents once, and compare them with the vector of a query. The length of the text, "
    "the pooling method, the prompt and the precision of the computation change the vector; whoever compares vectors "
    "of two servers should know all four of them.",
)

_SENTENCES = (
    "The old bridge over the river was built by masons who came from the north.",
    "Every morning the market opens at six, and the first customers buy fish and flowers.",
    "A small change in the temperature of the sea moves the current by hundreds of miles.",
    "Nobody had expected that the library would be open during the storm.",
)


def make_long_text(num_words: int, ending: str = "") -> str:
    """Return a text of this many words, in sentences, that ends with `ending`."""
    words = " ".join(_SENTENCES).split()
    repeated = [words[i % len(words)] for i in range(num_words)]
    return " ".join([*repeated, ending]) if ending else " ".join(repeated)


# for the comparison of two servers: groups of four lines about one subject
COMPARED_TEXTS = (
    "hello",
    "Paris",
    "42",
    "What is the capital of France?",
    "The capital of France is Paris.",
    "Quelle est la capitale de la France ?",
    "La capitale de la France est Paris, sur la Seine.",
    "Was kostet ein Brot beim Bäcker?",
    "Der Preis für Brot ist in diesem Jahr wieder gestiegen.",
    "El precio del pan ha subido este año.",
    "O preço do pão subiu novamente este ano.",
    "Сколько стоит хлеб в магазине?",
    "Цена на хлеб в этом году снова выросла.",
    "水中洞窟の深さはどのくらいですか。",
    "この洞窟は四十メートルの深さがある。",
    "天然井有多深？",
    "天然井是一种露出地下水的石灰岩坑洞。",
    "كم يبلغ عمق الكهف؟",
    "यह गुफा चालीस मीटर गहरी है।",
    "How do I change the password of my account?",
    "Open the settings, choose Security, and enter the new password twice.",
    "def mean(values):\n    return sum(values) / len(values)",
    "SELECT name, COUNT(*) FROM orders GROUP BY name HAVING COUNT(*) > 10;",
    "🙂 naïve café ﬁnance  double  spaces\tand a tab",
    "THE SAME TEXT IN CAPITALS AND THE SAME TEXT IN CAPITALS",
    make_long_text(60, "The bridge is closed."),
    make_long_text(120, "The market sells bread."),
    make_long_text(300, "The cave is deep."),
)
