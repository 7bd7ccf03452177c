#pragma once
// Names that a body sets before they have a value there.
#include "step2_model/chat/jinja/tree.h"

namespace ladder::jinja {

// Fills in Body::unset, as jinja2 decides it before a template runs: a name that a body sets at its own level (within
// no `if`) before it reads it, and that no body around it mentions, belongs to that body from its beginning and is
// undefined until it is set, whatever a variable of the request is called. So in
//     {% for m in messages %}{% for c in m.tool_calls %}{{ text }}{% endfor %}{% set text = m.content %}{% endfor %}
// the inner loop never sees a `text` of the request.
void find_unset_names(Tree& tree);

}  // namespace ladder::jinja
