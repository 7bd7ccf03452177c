#include "tests/step2_model/jinja.h"

#include "step1_layers/core/error.h"
#include "step2_model/chat/jinja/json_value.h"
#include "step2_model/chat/jinja/parser.h"
#include "step2_model/chat/jinja/print.h"

namespace ladder::testing {
namespace {

// What `use(interpreter, tree)` gives.
template <class Use>
jinja::Text with_template(std::string_view source, const OrderedJson& variables, const jinja::Limits& limits,
                          const Use& use) {
  int line = 1;
  jinja::Tree tree;
  try {
    tree = jinja::parse_template(source, line);
  } catch (const jinja::Refusal& refusal) {
    fail("not read: line {}: {}", line, refusal.what());
  }
  jinja::Interpreter interpreter(tree, limits);
  try {
    jinja::define_functions(interpreter, std::nullopt);
    for (const auto& [name, value] : variables.items())
      interpreter.define(name, jinja::value_of_json(interpreter, value));
    return use(interpreter, tree);
  } catch (const jinja::Refusal& refusal) {
    fail("line {}: {}", interpreter.line(), refusal.what());
  }
}

jinja::Text value_text(std::string_view expression, const OrderedJson& variables) {
  const auto value = [](jinja::Interpreter& interpreter, const jinja::Tree& tree) {
    return jinja::print(interpreter, interpreter.evaluate(*tree.body.statements.at(0)->expression));
  };
  return with_template("{{ " + std::string(expression) + " }}", variables, {}, value);
}

std::string marked(const jinja::Text& text) {
  std::string result;
  text.for_each_stretch([&](std::string_view bytes, jinja::Origin origin) {
    const bool outside = origin == jinja::Origin::outside;
    result.append(outside ? "⟦" : "").append(bytes).append(outside ? "⟧" : "");
  });
  return result;
}

jinja::Text run_jinja(std::string_view source, const OrderedJson& variables, const jinja::Limits& limits) {
  return with_template(source, variables, limits,
                       [](jinja::Interpreter& interpreter, const jinja::Tree&) { return interpreter.run(); });
}

}  // namespace

std::string render_jinja(std::string_view source, const OrderedJson& variables, const jinja::Limits& limits) {
  return run_jinja(source, variables, limits).bytes();
}

std::string render_marked(std::string_view source, const OrderedJson& variables) {
  return marked(run_jinja(source, variables, {}));
}

std::string value_of_jinja(std::string_view expression, const OrderedJson& variables) {
  return value_text(expression, variables).bytes();
}

std::string marked_value_of_jinja(std::string_view expression, const OrderedJson& variables) {
  return marked(value_text(expression, variables));
}

}  // namespace ladder::testing
