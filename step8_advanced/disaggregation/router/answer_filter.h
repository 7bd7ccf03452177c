#pragma once
// Takes kv_transfer_params out of a decode server's answer: how the servers reach each other is no client's business. All else
// goes on byte for byte.
#include <string>
#include <string_view>

namespace ladder {

// Bytes of any cut in; whole lines out. A line is an object, or an event of a stream ("data: {...}"); one that is not passes.
class AnswerFilter {
 public:
  // Appends to `out` the lines that these bytes end. Error: a line of more than 64 MiB.
  void feed(std::string_view bytes, std::string& out);
  // Appends what is left: the answer ends here.
  void finish(std::string& out);

 private:
  std::string line_;  // whose end has not come
};

}  // namespace ladder
