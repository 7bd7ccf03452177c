#pragma once
// tokenizer.json: text to token ids and back.
//
//     text -> added tokens found -> normalized -> cut into pieces -> merged by BPE -> begin token before it
//
// Supported is byte-level BPE as GPT-2, OPT, Qwen 2 to 3 and Llama 3 have it, and BPE of the SentencePiece kind
// as Llama 2, Mistral, Mixtral, Phi 3 and Gemma have it, which merges characters; a file that asks for anything
// else is refused with the name of the field. For a supported file, ids and decoded text equal those of Hugging
// Face tokenizers (tests/goldens/tokenizer, tokenizer_sp). All of it is const and may be called from several
// threads.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/tokenizer/added_tokens.h"
#include "step2_model/tokenizer/bpe.h"
#include "step2_model/tokenizer/normalizer.h"
#include "step2_model/tokenizer/pre_tokenizer.h"
#include "step2_model/tokenizer/text_decoder.h"
#include "step2_model/tokenizer/tokenizer_config.h"

namespace ladder {

// A stretch of a text that is encoded as a whole. In a stretch that is not trusted (what a user typed),
// special tokens are plain text: typing <|im_end|> ends nothing.
struct TextSegment {
  std::string text;
  bool trusted = true;
};

class Tokenizer {
 public:
  // From `directory`/tokenizer.json. The begin and the end token, and whether a text gets them, come from the
  // files beside it too (tokenizer_config.h). Error where tokenizer.json is missing, malformed or not
  // supported; where a file of another kind is there (tokenizer.model) it says how to make one from it.
  static Tokenizer load(const std::filesystem::path& directory);
  // From the text of such a file; `what` is how errors call it. fast_scanner as in PreTokenizer::parse.
  static Tokenizer parse(std::string_view json, std::string_view what, bool fast_scanner = true);

  // The ids of a text. Invalid UTF-8 in it counts as U+FFFD. With add_special_tokens the tokens of the
  // post-processor (Llama 3's <|begin_of_text|>) and of add_bos_token and add_eos_token are put around it.
  // With parse_special = false the text is one untrusted segment. Error where the text is longer than 1 GiB,
  // or splitting it exceeds the regex limits.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens,
                              bool parse_special = true) const;

  // The ids of segments that are one text: the segments decide about control tokens only, words and merges
  // cross their borders as if there were none. Control tokens are the special ones and the added tokens named
  // in `control_tokens`, which are plain text in an untrusted segment whether they are special or not.
  std::vector<int32_t> encode(std::span<const TextSegment> segments, bool add_special_tokens,
                              std::span<const std::string_view> control_tokens = {}) const;

  // The text of ids; bytes that are no UTF-8 become U+FFFD. With skip_special, special tokens are left out.
  // Error for an id that has no token.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of one token within a text, which may be half a character. Error for an id that has no token.
  std::string_view token_bytes(int32_t id) const;

  // One more than the largest id. A model's vocab_size is often larger: rows of padding without a token.
  int64_t vocab_size() const { return tokens_.size(); }
  bool has_token(int64_t id) const { return tokens_.has(id); }
  bool is_special(int32_t id) const {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }

  // The tokens that tokenizer_config.json calls bos_token and eos_token; nothing where it names none, or one
  // that is no token here.
  std::optional<int32_t> bos_token_id() const { return bos_token_id_; }
  std::optional<int32_t> eos_token_id() const { return eos_token_id_; }

  // The added tokens of the file, special or not, by their content.
  const std::map<std::string, int32_t, std::less<>>& added_tokens() const { return added_ids_; }

  // The id of a token as it is written in the file: an added token's content ("<|im_end|>"), else "Ġthe".
  std::optional<int32_t> token_to_id(std::string_view token) const;

 private:
  Tokenizer(Bpe bpe, PreTokenizer pre_tokenizer)
      : bpe_(std::move(bpe)), pre_tokenizer_(std::move(pre_tokenizer)) {}

  void parse_added_tokens(const Json& added, std::string_view what);
  void parse_post_processor(const Json& value, std::string_view what);
  void apply(const TokenizerConfig& config);
  // The way of a text of valid UTF-8: raw_added_ cuts it; what lies between goes through normalizer_ and, where
  // there are any, normalized_added_, which needs the stretches of the normalized text; what lies between those
  // goes through encode_between. prefix_ and suffix_ around all of it where add_special_tokens says so.
  std::vector<int32_t> encode_valid(std::string_view text, std::span<const TextStretch> stretches,
                                    std::span<const int32_t> control_ids, bool add_special_tokens) const;
  // Appends the ids of a text without added tokens: the prefix space where the pre-tokenizer asks for one and
  // none is there, or the spaces as its Metaspace writes them; the pieces, their merges. `first`: the whole text
  // begins with this one. A text of which the normalizer has left nothing gets nothing.
  void encode_between(std::string_view text, bool first, std::vector<int32_t>& ids) const;

  friend class IncrementalDecoder;

  Bpe bpe_;
  PreTokenizer pre_tokenizer_;
  Normalizer normalizer_;
  std::optional<TextDecoder> text_decoder_;  // of the SentencePiece kind; byte-level tokens need none
  TokenTable tokens_;                        // the model's and the added ones
  TokenTable written_;                       // for text_decoder_: the same as they are written in the file
  std::vector<bool> special_;                // by id
  std::map<std::string, int32_t, std::less<>> added_ids_;
  AddedTokenFinder raw_added_, normalized_added_;
  std::vector<int32_t> prefix_, suffix_;  // what add_special_tokens puts around a text
  std::optional<int32_t> bos_token_id_, eos_token_id_;
};

// Decodes token by token. A piece never ends within a character: its bytes are held back until the rest has
// come. All pieces together are what decode() gives for all ids. A run of byte tokens (<0x0A>, SentencePiece kind)
// is held back until a token comes that is none: until then decode() may still make all of it U+FFFD.
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that is certain after one more token; empty while a character is incomplete. Bytes that can no
  // longer become one give U+FFFD at once, as many as decode() gives. Error for an id that has no token.
  std::string push(int32_t id);
  // The text that is left when no more tokens come: U+FFFD for an incomplete character, else nothing. It leaves
  // once.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;               // byte-level: the beginning of a character, at most three bytes
  TextDecoder::State decoder_state_;  // SentencePiece kind
};

}  // namespace ladder
