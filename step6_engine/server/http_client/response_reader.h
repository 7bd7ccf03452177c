#pragma once
// An answer's bytes, as they come in: Beast reads the head and the chunks; the body goes on as views of the read buffer.
#include <boost/beast/http/basic_parser.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace ladder {

class ResponseReader final : public boost::beast::http::basic_parser<false> {
 public:
  // `on_body` outlives it.
  explicit ResponseReader(std::function<void(std::string_view)>* on_body) : on_body_(on_body) {
    eager(true);
    body_limit(boost::none);
  }
  int status = 0;
  std::string content_type, retry_after;
  bool is_event_stream() const { return content_type.starts_with("text/event-stream"); }

 private:
  using Field = boost::beast::http::field;
  using View = boost::beast::string_view;
  using Failure = boost::beast::error_code;
  void on_request_impl(boost::beast::http::verb, View, View, int, Failure&) override {}
  void on_response_impl(int code, View, int, Failure&) override { status = code; }
  void on_field_impl(Field name, View, View value, Failure&) override {
    if (name == Field::content_type) content_type.assign(value.data(), value.size());
    if (name == Field::retry_after) retry_after.assign(value.data(), value.size());
  }
  void on_header_impl(Failure&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, Failure&) override {}
  std::size_t on_body_impl(View body, Failure&) override { return pass(body); }
  void on_chunk_header_impl(std::uint64_t, View, Failure&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View body, Failure&) override { return pass(body); }
  void on_finish_impl(Failure&) override {}
  std::size_t pass(View body) {
    (*on_body_)({body.data(), body.size()});
    return body.size();
  }

  std::function<void(std::string_view)>* on_body_;
};

}  // namespace ladder
