#include "step6_engine/server/openai/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "step6_engine/server/openai/api_error.h"

namespace ladder {

namespace {

std::string brief(const OrderedJson& value) {
  return json_brief(Json(value));
}

const OrderedJson* member(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// "a" of [{"type": "text", "text": "a"}]
std::string text_of_parts(const OrderedJson& parts, const std::string& what) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    const std::string place = fmt::format("{}[{}]", what, i);
    if (i > 0) text += '\n';
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    const OrderedJson* type = part.is_object() ? member(part, "type") : nullptr;
    if (type == nullptr || !type->is_string())
      refuse("messages", place + ": expected a part like {\"type\": \"text\", \"text\": \"...\"}");
    if (*type != "text" && *type != "input_text")
      refuse("messages",
             fmt::format("{}: parts of type {} are not supported, only text is", place, brief(*type)));
    const OrderedJson* content = member(part, "text");
    if (content == nullptr || !content->is_string()) refuse("messages", place + ".text: expected a string");
    text += content->get_ref<const std::string&>();
  }
  return text;
}

// Templates write the arguments of a call as an object.
void read_arguments(OrderedJson& calls, const std::string& what) {
  if (!calls.is_array()) refuse("messages", what + ": expected a list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = fmt::format("{}[{}].function", what, i);
    if (!calls[i].is_object() || !calls[i].contains("function") || !calls[i]["function"].is_object())
      refuse("messages", place + ": expected an object with a name and arguments");
    OrderedJson& arguments = calls[i]["function"]["arguments"];
    if (arguments.is_null()) arguments = OrderedJson::object();
    if (!arguments.is_string()) continue;
    const std::string text = arguments.get<std::string>();
    arguments = text.empty() ? OrderedJson::object()
                             : parse_ordered_json(text, "messages: " + place + ".arguments", 32);
  }
}

void read_messages(OrderedJson& messages) {
  if (!messages.is_array() || messages.empty())
    refuse("messages", "messages: expected a list with at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string what = fmt::format("messages[{}]", i);
    OrderedJson& message = messages[i];
    if (!message.is_object()) refuse("messages", what + ": expected an object, found " + brief(message));
    const OrderedJson* role = member(message, "role");
    if (role == nullptr || !role->is_string()) refuse("messages", what + ".role: expected a string");
    if (message.contains("content") && !message["content"].is_null()) {
      OrderedJson& content = message["content"];
      if (content.is_array())
        content = text_of_parts(content, what + ".content");
      else if (!content.is_string())
        refuse("messages", what + ".content: expected a string or a list of parts, found " + brief(content));
    } else {
      message["content"] = "";
    }
    if (member(message, "tool_calls") != nullptr) read_arguments(message["tool_calls"], what + ".tool_calls");
  }
}

void check_tools(const OrderedJson& tools) {
  if (!tools.is_array()) refuse("tools", "tools: expected a list, found " + brief(tools));
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson* function = tools[i].is_object() ? member(tools[i], "function") : nullptr;
    const OrderedJson* name =
        function != nullptr && function->is_object() ? member(*function, "name") : nullptr;
    if (tools[i].is_object() && tools[i].value("type", OrderedJson()) != "function")
      refuse("tools", fmt::format("tools[{}].type: only \"function\" is supported", i));
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty())
      refuse("tools", fmt::format("tools[{}].function.name: expected a string", i));
  }
}

std::string stripped(const std::string& text, bool left_only) {
  const char* space = " \t\n\r\v\f";
  const size_t begin = std::min(text.find_first_not_of(space), text.size());
  const size_t end = left_only ? text.size() : text.find_last_not_of(space) + 1;
  return begin >= end ? "" : text.substr(begin, end - begin);
}

// Cuts the segments behind the last message's text, so that the model goes on with it (transformers'
// continue_final_message).
void end_with(std::vector<TextSegment>& segments, const std::string& last) {
  std::string all;
  for (const TextSegment& segment : segments) all += segment.text;
  const size_t place = all.rfind(stripped(last, false));
  if (place == std::string::npos || stripped(last, false).empty())
    refuse("continue_final_message",
           "continue_final_message: the last message is not in the template's text");
  const std::string with_end = stripped(last, true);
  size_t left = place + (all.compare(place, with_end.size(), with_end) == 0 ? with_end.size()
                                                                            : stripped(last, false).size());
  for (TextSegment& segment : segments) {
    segment.text.resize(std::min(segment.text.size(), left));
    left -= segment.text.size();
  }
}

}  // namespace

ChatPrompt chat_prompt(RequestBody& body, const ServedModel& model) {
  if (model.chat_template == nullptr || model.tokenizer == nullptr)
    refuse("messages", "messages: this model has no chat template; expected a prompt for /v1/completions");
  read_messages(body.messages);
  ChatPrompt prompt;
  ChatRequest request;
  const OrderedJson& last = body.messages.back();
  const std::string last_text = last["content"].get<std::string>();
  if (last["role"] == "assistant") prompt.last_assistant_text = last_text;
  request.messages = std::move(body.messages);
  if (!body.tools.is_null()) {
    check_tools(body.tools);
    prompt.has_tools = !body.tools.empty();
    if (prompt.has_tools && !model.chat_template->has_tools())
      refuse("tools", "tools: the chat template of this model reads none");
    if (prompt.has_tools) request.tools = std::move(body.tools);
  }
  request.documents = std::move(body.documents);
  if (!body.template_variables.is_null()) {
    if (!body.template_variables.is_object())
      refuse("chat_template_kwargs",
             "chat_template_kwargs: expected an object, found " + brief(body.template_variables));
    request.variables = std::move(body.template_variables);
  }
  if (const std::optional<std::string> effort = body.text("reasoning_effort")) {
    if (!request.variables.contains("reasoning_effort")) request.variables["reasoning_effort"] = *effort;
    if (*effort == "none" && !request.variables.contains("enable_thinking") &&
        model.chat_template->has_thinking_switch())
      request.options.enable_thinking = false;
  }
  const bool goes_on = body.flag("continue_final_message", false);
  request.options.add_generation_prompt = body.flag("add_generation_prompt", !goes_on);
  if (goes_on && request.options.add_generation_prompt)
    refuse("continue_final_message",
           "continue_final_message: it and add_generation_prompt exclude each other");

  std::vector<TextSegment> segments;
  try {
    segments = model.chat_template->render_segments(request);
  } catch (const Error& error) {
    const bool own_name =
        std::string_view(error.what()).find("the template's variable") != std::string_view::npos;
    throw ApiError(400, own_name ? "chat_template_kwargs" : "messages",
                   without_folder(error.what(), model.folder));
  }
  if (goes_on) end_with(segments, last_text);
  prompt.token_ids = model.tokenizer->encode(segments, body.flag("add_special_tokens", false),
                                             model.chat_template->control_tokens(*model.tokenizer));
  return prompt;
}

}  // namespace ladder
