#pragma once
// A template as a tree of statements and expressions, as the parser makes it and the interpreter walks it.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

struct FilterEntry;  // filters.h
struct TestEntry;    // tests.h

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    constant,     // value
    name,         // text, symbol
    list,         // operands
    tuple,        // operands
    dict,         // operands: key, value, key, value, ...
    attribute,    // operands[0] . text
    item,         // operands[0] [ operands[1] ]
    slice,        // operands[0] [ operands[1] : operands[2] : operands[3] ], any of the three may be null
    call,         // operands[0] ( the other operands, named )
    filter,       // operands[0] | text ( the other operands, named ); null: the text of a block
    test,         // operands[0] is text ( the other operands, named )
    conditional,  // operands[0] if operands[1] else operands[2], which may be null
    logical_not,
    logical_and,
    logical_or,
    negative,
    positive,
    binary,   // text: + - * / // % **
    concat,   // operands, any number: ~
    compare,  // operands[0] operators[0] operands[1] operators[1] operands[2] ...: == != < <= > >= in "not in"
  };

  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree below
  Value value;
  std::string text;
  int symbol = -1;  // the number of a name in the template
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
  const FilterEntry* filter = nullptr;  // nullptr: not known, and refused when it is to be applied
  const TestEntry* test = nullptr;
};

[[noreturn]] inline void refuse_unknown(std::string_view what, std::string_view name) {
  refuse("the {} \"{}\" is not supported", what, name);
}

// What an assignment writes to: a name, an attribute of a namespace, or a list of targets.
struct Target {
  int symbol = -1;
  std::string name;
  std::string attribute;  // of the namespace that `symbol` is; empty: the name itself
  std::vector<Target> elements;
};

struct Statement;

struct Body {
  std::vector<std::unique_ptr<Statement>> statements;
  std::vector<int>
      unset;  // symbols that are undefined when it begins, whatever they are around it (unset_names.h)
};

struct Parameter {
  int symbol;
  std::string name;
  ExpressionPtr otherwise;  // its default, or null
};

struct Statement {
  enum class Kind : uint8_t {
    data,          // value, as it is
    output,        // {{ expression }}
    condition,     // branches: expression and body; one without expression is the else
    loop,          // for target in expression if condition: body, otherwise
    set,           // set target = expression
    set_block,     // set target | expression: body endset
    with,          // with target = expression, ...: body
    macro,         // macro name(parameters): body
    call_block,    // call(parameters) expression: body
    filter_block,  // filter expression: body
    scope,         // a body with names of its own: generation
    loop_break,
    loop_continue,
  };

  struct Branch {
    ExpressionPtr condition;
    Body body;
  };

  Kind kind;
  int line = 0;
  Value value;
  ExpressionPtr expression, condition;
  Target target;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::string name;
  int symbol = -1;
  bool takes_rest = false, takes_keywords = false,
       takes_caller = false;  // a macro that reads varargs, kwargs, caller
  Body body, otherwise;
};

// What the parser gives.
struct Tree {
  Body body;
  std::vector<std::string> names;      // by symbol
  std::vector<std::string> constants;  // all that the template itself can write: its data and its strings
  std::vector<bool> read, tested;  // by symbol: whether its value is asked for; whether it may be undefined
};

}  // namespace ladder::jinja
