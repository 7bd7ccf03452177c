#pragma once
// What the soaks of `ladder serve` share: what a client has got, and what must not be left behind.
#include <string>

#include "tests/cli/running_server.h"

namespace ladder::testing {

// What a client has got: the text, and how often its end was told.
struct Answer {
  std::string text;
  int num_ends = 0;
  bool whole = false;  // nothing is missing
  bool error = false;  // the server says that it failed
};

inline Answer read_answer(const std::string& got, bool stream) {
  Answer answer;
  const size_t head = got.find("\r\n\r\n");
  if (head == got.npos) return answer;
  if (status_of(got) != 200) {
    answer.error = answer.whole = status_of(got) == 500 || status_of(got) == 503;
    return answer;
  }
  const auto add = [&answer](const std::string& text) {
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return;
    answer.error |= json.contains("error");
    if (!json.contains("choices")) return;
    for (const Json& choice : json["choices"]) {
      answer.text += choice["text"].get<std::string>();
      answer.num_ends += !choice["finish_reason"].is_null();
    }
  };
  if (!stream) {
    add(body_of(got));
    answer.whole = answer.num_ends > 0;
    return answer;
  }
  int num_done = 0;
  for (size_t at = got.find("data: "); at != got.npos; at = got.find("data: ", at + 1)) {
    const std::string event = got.substr(at + 6, got.find("\n\n", at) - at - 6);
    if (event == "[DONE]")
      ++num_done;
    else
      add(event);
  }
  EXPECT_LE(num_done, 1) << got;
  answer.whole = num_done == 1;
  return answer;
}

}  // namespace ladder::testing
