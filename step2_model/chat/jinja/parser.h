#pragma once
// Tokens to a tree. Precedence, from what binds least: `a if b else c`, or, and, not, comparisons and in, + -, ~,
// * / // %, **, the signs, filters and tests, and at last .name [item] (call).
#include <string_view>

#include "step2_model/chat/jinja/tree.h"

namespace ladder::jinja {

// Refusal, and `line` says where: what is no Jinja, statements, filters and tests that are not known (import, include,
// extends, block, recursive loops, autoescape and do among them), and more than 200 brackets,
// operators and statements within each other. As in jinja2, a filter or test within an `if` is refused only when it is
// to be applied: some templates have branches for engines that know more.
Tree parse_template(std::string_view source, int& line);

}  // namespace ladder::jinja
