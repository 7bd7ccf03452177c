#pragma once
// Answers that are errors, in the form that the field's clients know (vLLM's):
//   {"error": {"message": "...", "type": "Not Found", "param": null, "code": 404}}
// A message is for who sent the request: no path of this machine, no address in memory.
#include <string>
#include <string_view>

#include "step6_engine/server/http/exchange.h"

namespace ladder {

// "Not Found"; "Error" for a number that HTTP does not name.
std::string_view status_phrase(int status);

// `type` empty: the status' phrase. `param`: the field that is wrong; empty: null. Bytes that are no UTF-8 are
// replaced.
std::string error_body(int status, std::string_view message, std::string_view type = {},
                       std::string_view param = {});
HttpResponse error_response(int status, std::string_view message, std::string_view type = {},
                            std::string_view param = {});

}  // namespace ladder
