#pragma once
// Trees as text, so that a test can say what a parser should make.
#include <string>

#include "step2_model/chat/jinja/tree.h"

namespace ladder::testing {

// With brackets around every operator: "(1 + (2 * 3))", "(x | upper)", "(not (x is odd))", "x[1::]". The subject of a
// block's filter is _.
std::string shown(const jinja::Expression& expression);
// if (n == 1) ["a"] else [n]    for x in l if x ["."] else ["none"]    macro f(a, b=1) caller ["x"]    set y ["z"]
std::string shown(const jinja::Body& body);

}  // namespace ladder::testing
