#pragma once
// What a statement changes for as long as it runs: where names are looked up, and where its output goes.
#include "step2_model/chat/jinja/interpreter.h"

namespace ladder::jinja {

// Output goes to a text of its own as long as this lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter) : interpreter_(interpreter), outer_(interpreter.out_) {
    interpreter_.out_ = &text_;
  }
  ~Capture() {
    interpreter_.out_ = outer_;
    interpreter_.budget_.release(text_.size());
  }
  Capture(const Capture&) = delete;
  Text text() const { return text_; }

 private:
  Interpreter& interpreter_;
  Text* outer_;
  Text text_;
};

// A scope within the one of now, or within another.
class Interpreter::NewScope {
 public:
  NewScope(Interpreter& interpreter, Scope* parent) : interpreter_(interpreter), outer_(interpreter.scope_) {
    interpreter_.scope_ = interpreter_.new_scope(parent);
  }
  explicit NewScope(Interpreter& interpreter) : NewScope(interpreter, interpreter.scope_) {}
  ~NewScope() {
    interpreter_.end_scope(interpreter_.scope_);
    interpreter_.scope_ = outer_;
  }
  NewScope(const NewScope&) = delete;

 private:
  Interpreter& interpreter_;
  Scope* outer_;
};

}  // namespace ladder::jinja
