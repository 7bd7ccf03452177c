#include "step6_engine/prepare_request.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// As vLLM's SamplingParams.update_from_tokenizer(): a word is written in another way after a space. That way
// is forbidden too where it is another word of as many tokens; where it is the same one with a token for the
// space before it, the ids without it say it all.
void add_bad_word(const std::string& word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>& ids) {
  const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
  LADDER_CHECK(!bare.empty(), "bad_words: \"{}\" has nothing but spaces", word);
  const std::vector<int32_t> first = tokenizer.encode(bare, false);
  const std::vector<int32_t> spaced = tokenizer.encode(" " + bare, false);
  ids.push_back(first);
  if (spaced.size() == first.size() && spaced[0] != first[0]) ids.push_back(spaced);
}

}  // namespace

PreparedRequest prepare_request(const Request& request, const Tokenizer* tokenizer,
                                const Scheduler& scheduler) {
  PreparedRequest prepared{request.request_id, request.prompt_token_ids, request.sampling, nullptr};
  if (request.kv_transfer) {
    LADDER_CHECK(scheduler.config().has_kv_connector,
                 "kv_transfer_params: this engine is connected with no other engine");
    prepared.kv_transfer = std::make_shared<const KvTransferParams>(*request.kv_transfer);
  }
  if (request.prompt) {
    LADDER_CHECK(tokenizer != nullptr,
                 "prompt: a text needs a tokenizer, and the model's folder has no tokenizer.json");
    LADDER_CHECK(!request.prompt->empty(), "prompt: it is empty");
    prepared.prompt_token_ids = tokenizer->encode(*request.prompt, true);
  }
  LADDER_CHECK(request.sampling.stop.empty() || tokenizer != nullptr,
               "stop: strings need a tokenizer, and the model's folder has no tokenizer.json");
  LADDER_CHECK(request.sampling.bad_words.empty() || tokenizer != nullptr,
               "bad_words: they need a tokenizer, and the model's folder has no tokenizer.json");
  validate_sampling_params(request.sampling, scheduler.config().vocab_size);  // before work is done for them
  for (const std::string& word : request.sampling.bad_words)
    add_bad_word(word, *tokenizer, prepared.sampling.bad_words_token_ids);
  scheduler.check(prepared.prompt_token_ids, prepared.sampling);
  return prepared;
}

}  // namespace ladder
