#pragma once
// NFC, Unicode's composed form: "e" followed by a combining acute accent becomes the one character "é", and
// several marks on one letter come into a fixed order (Unicode Standard Annex 15).
//
// Nearly all text is in NFC already, and the tables say so character by character: only where a mark follows
// is anything normalized, the rest is copied as it stands. Characters that Hugging Face's normalizer (of an
// older Unicode version) does not know stay as they are, here as there.
#include <optional>
#include <string>
#include <string_view>

namespace ladder {

// The text in NFC, or nothing where it is in NFC already. `text` must be valid UTF-8. Linear in its length,
// up to the sorting of marks.
std::optional<std::string> normalize_nfc(std::string_view text);

}  // namespace ladder
