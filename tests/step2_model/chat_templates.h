#pragma once
// Chat templates of our own for tests.
#include <map>
#include <string>

#include "step2_model/chat/chat_template.h"

namespace ladder::testing {

inline std::string chatml_with(const std::string& default_system) {
  const std::string otherwise = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\n" +
                                default_system + "<|im_end|>\\n' }}{% endif %}";
  return (default_system.empty() ? "" : otherwise) +
         "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

inline std::string thinking_template(const std::string& prompt) {
  return R"({%- set ns = namespace(last = messages|length - 1, seeking = true) %}
{%- for m in messages[::-1] %}
  {%- if ns.seeking and m.role == "user" and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
    {%- set ns.seeking = false %}{% set ns.last = messages|length - 1 - loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}
  {%- set content = m.content %}{% set thought = '' %}
  {%- if m.role == 'assistant' and '</think>' in content %}
    {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].strip('\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
  {%- endif %}
  {{- '<|im_start|>' + m.role + '\n' }}
  {%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}
    {{- '<think>\n' + thought + '\n</think>\n\n' + content.lstrip('\n') }}
  {%- else %}{{- content }}{% endif %}
  {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }})" +
         prompt + "{%- endif %}";
}

inline std::string llama3_template(const std::string& prompt, bool dates) {
  const std::string header =
      R"({%- macro header(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %})";
  const std::string system =
      R"({%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{{- header('system') + 'Cutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}{{- '<|eot_id|>' }})";
  return header + "{{- bos_token }}" + (dates ? system : "") +
         "{%- for m in messages %}{{ header(m.role) + m.content | trim + '<|eot_id|>' }}{% endfor %}" +
         (prompt.empty() ? "" : "{% if " + prompt + " %}{{ header('assistant') }}{% endif %}");
}

// Writes what the published template of this name writes where no tools are used: chatml, qwen1.5, qwen2, qwen2.5,
// qwen2.5-base, qwen2.5-math, qwen3, qwen3-instruct-2507, qwen3-thinking-2507, smollm2, llama3-2024-04, llama3,
// llama3.1, llama3.2. std::out_of_range for another one.
inline std::string own_template(const std::string& name) {
  const std::string qwen3_prompt =
      "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}";
  const std::map<std::string, std::string> templates = {
      {"chatml", chatml_with("")},
      {"qwen1.5", chatml_with("You are a helpful assistant")},
      {"qwen2", chatml_with("You are a helpful assistant.")},
      {"smollm2", chatml_with("You are a helpful AI assistant named SmolLM, trained by Hugging Face")},
      {"qwen2.5", chatml_with("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
      {"qwen2.5-base", chatml_with("You are a helpful assistant.")},
      {"qwen2.5-math",
       chatml_with("Please reason step by step, and put your final answer within \\\\boxed{}.")},
      {"qwen3", thinking_template(qwen3_prompt)},
      {"qwen3-instruct-2507", chatml_with("")},
      {"qwen3-thinking-2507", thinking_template("{{- '<think>\\n' }}")},
      {"llama3-2024-04", llama3_template("true", false)},
      {"llama3", llama3_template("add_generation_prompt", false)},
      {"llama3.1", llama3_template("add_generation_prompt", true)},
      {"llama3.2", llama3_template("add_generation_prompt", true)},
  };
  return templates.at(name);
}

// Read as "the-file".
inline ChatTemplate parsed(const std::string& jinja, const std::string& bos_token = "") {
  return ChatTemplate::parse(
      jinja, {.bos_token = bos_token, .eos_token = "", .pad_token = "", .unk_token = ""}, "the-file");
}

}  // namespace ladder::testing
