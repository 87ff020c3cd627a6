"""Words of scripts with spaces have typos and prefixes."""

import pytest
from searching import numbers, search, store

from conftest import Connection

pytestmark = pytest.mark.module("words")

# A word of two, its beginning, and a spelling with another letter.
WORDS = {
    "Hindi": ("गोपनीयता नीति", "गोपनी", "गोपनियता"),
    "Bengali": ("গোপনীয়তা নীতি", "গোপনী", "গোপনিয়তা"),
    "Tamil": ("தனியுரிமை கொள்கை", "தனியு", "தனியுரமை"),
    "Georgian": ("გადახდის პირობები", "გადახდ", "გადახდას"),
    "Amharic": ("የግላዊነት መመሪያ", "የግላዊ", "የግላዊነች"),
    # Their words end in a sign, or have a joiner.
    "Tamil, a virama": ("புத்தகம் கொள்கை", "புத்த", "பு்தகம்"),
    "Bengali, a nukta": ("শিক্ষায় নীতি", "শিক্ষা", "শিক্ষয়"),
    "Telugu, a vowel": ("ఆంధ్రప్రదేశ్ నీతి", "ఆంధ్ర", "ఆంధ్రప్రదేశ"),
    "Malayalam": ("സ്വകാര്യതാ നയം", "സ്വകാര്യ", "സ്വകാര്യതി"),
}


@pytest.mark.parametrize("script", WORDS)
def test_a_beginning_and_a_typo_find_the_word(knowledge: Connection, script: str) -> None:
    text, beginning, typo = WORDS[script]
    store(knowledge, *({"content": one, "language": "simple"} for one in (text, "other text")))
    assert numbers(search(knowledge, query_text=beginning, prefix_last=True)) == [1]
    (row,) = search(knowledge, query_text=typo)
    assert row["notes"]["replaced"] == {typo: text.split()[0]}
