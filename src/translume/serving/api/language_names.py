"""Names of languages, and their codes as LibreTranslate's clients write them."""

from typing import Final

NAMES: Final = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "ga": "Irish",
    "gl": "Galician",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mk": "Macedonian",
    "ms": "Malay",
    "nb": "Norwegian Bokmål",
    "nl": "Dutch",
    "nn": "Norwegian Nynorsk",
    "pl": "Polish",
    "pt": "Portuguese",
    "pt-br": "Portuguese (Brazil)",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "th": "Thai",
    "tl": "Tagalog",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh-hans": "Chinese",
    "zh-hant": "Chinese (traditional)",
}
PUBLIC: Final = {
    "pb": "pt-BR",
    "pt-br": "pt-BR",
    "zh": "zh-Hans",
    "zh-hans": "zh-Hans",
    "zt": "zh-Hant",
    "zh-hant": "zh-Hant",
}
"""Codes whose form on the wire is another one."""


def public(code: str) -> str:
    """The code as clients know it."""
    return PUBLIC.get(code.lower(), code)


def name_of(code: str) -> str:
    """The language's English name; the code itself where no name is known."""
    return NAMES.get(public(code).lower(), code)
