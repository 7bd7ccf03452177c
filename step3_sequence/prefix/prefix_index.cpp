#include "step3_sequence/prefix/prefix_index.h"

namespace ladder {

std::span<const int32_t> TokenView::subspan(int64_t begin, int64_t count,
                                            std::vector<int32_t>& scratch) const {
  const int64_t border = std::ssize(prompt);
  if (begin + count <= border) return prompt.subspan(begin, count);
  if (begin >= border) return output.subspan(begin - border, count);
  scratch.assign(prompt.begin() + begin, prompt.end());
  scratch.insert(scratch.end(), output.begin(), output.begin() + (begin + count - border));
  return scratch;
}

}  // namespace ladder
