#include "step6_engine/server/http/errors.h"

#include <nlohmann/json.hpp>

namespace ladder {

std::string_view status_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

std::string error_body(int status, std::string_view message, std::string_view type, std::string_view param) {
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = type.empty() ? status_phrase(status) : type;
  error["param"] = nullptr;
  if (!param.empty()) error["param"] = param;
  error["code"] = status;
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse error_response(int status, std::string_view message, std::string_view type,
                            std::string_view param) {
  HttpResponse response;
  response.status = status;
  response.body = error_body(status, message, type, param);
  return response;
}

}  // namespace ladder
