"""Byte-level BPE over rendered episodes, by the `tokenizers` library, kept as tokenizer.json.

Identifiers ("r0", "cluster2"), numbers and runs of punctuation are never merged with one another,
so that a choice is one or two tokens and is spelt alike in the opening and in a call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreSequence
from tokenizers.trainers import BpeTrainer

from cuda_agent.errors import SettingsError

VOCABULARY = 2048
PAD, TASK, CALL, RESULT, END = "<|pad|>", "<|task|>", "<|call|>", "<|result|>", "<|end|>"
SPECIAL = (PAD, TASK, CALL, RESULT, END)
FILE = "tokenizer.json"
PIECES = r" ?[A-Za-z_][A-Za-z0-9_]*| ?[0-9]+| ?[^\sA-Za-z0-9_]+|\s"


class Tokenizer:
    """Text to ids and back. `pad`, `task`, `call`, `result`, `end` are the special ids 0 to 4.

    A stream is: task, opening, then for each turn: call, JSON, end, result, feedback. Everything
    but the JSON and `end` comes from the environment.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        backend.encode_special_tokens = True  # text that looks like one is text; not in the file
        ids = [i for token in SPECIAL if (i := backend.token_to_id(token)) is not None]
        if len(ids) < len(SPECIAL):
            raise SettingsError(f"the tokenizer lacks one of {', '.join(SPECIAL)}.")
        self.pad, self.task, self.call, self.result, self.end = ids

    def __len__(self) -> int:
        return int(self.backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Special tokens in `text` are text."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens are left out."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: str | Path) -> None:
        Path(folder, FILE).write_text(self.backend.to_str(), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Raises SettingsError when there is no tokenizer.json in `folder`."""
        path = Path(folder, FILE)
        if not path.is_file():
            raise SettingsError(f"{path} does not exist; a model's folder holds its {FILE}.")
        try:
            return cls(Backend.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises plain Exception
            raise SettingsError(f"{path} is no tokenizer: {error}.") from error


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Deterministic: the same texts in the same order make the same file."""
    backend = Backend(BPE())
    backend.pre_tokenizer = PreSequence(
        [Split(Regex(PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


@cache
def shipped() -> Tokenizer:
    """The tokenizer in this package, made by benchmarks/policy/tokenizer.py."""
    return Tokenizer.load(Path(__file__).parent)
