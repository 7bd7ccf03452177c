#include "step8_advanced/quantization/quantizer/copy_files.h"

#include "step2_model/json.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"

namespace ladder {

void copy_other_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                           "merges.txt", "chat_template.jinja", "chat_template.json", "LICENSE",
                           "LICENSE.txt", "LICENSE.md", "NOTICE", "NOTICE.txt", "USE_POLICY.md"})
    if (std::filesystem::is_regular_file(from / name))
      write_file_atomically(to / name, read_text_file(from / name));
}

}  // namespace ladder
