#pragma once
// The functions that a region defines: names and bodies, found with braces and tokens, without a compiler.
#include <string>
#include <string_view>
#include <vector>

namespace lab {

struct Function {
  std::string name;           // as written: "Scheduler::take", "RunsBefore::operator()"
  size_t open = 0;            // offset of the body's {
  size_t close = 0;           // and of its }
  bool on_gpu = false;        // __global__ or __device__
  bool returns_value = true;  // not void
};

// All function bodies outside other functions, in their order: also those of members in a struct, of templates,
// of constructors with member initializers. Error (LabError): text that is no sequence of whole definitions, or a
// function that cannot be a stub (constexpr, a deduced return type, noexcept, a lambda outside functions), each
// with its line.
std::vector<Function> find_functions(std::string_view source);

}  // namespace lab
