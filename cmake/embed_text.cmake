# Text files as a C++ source: cmake -DOUT=FILE.cpp -DFILES=a;b -P embed_text.cmake. What ladder::window_files() returns.
set(source "// Made by cmake/embed_text.cmake.\n#include \"step6_engine/server/window/window_files.h\"\n\nnamespace ladder {\nnamespace {\n\nconstexpr WindowFile kFiles[] = {\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} text)
  string(APPEND source "    {\"${name}\", R\"LADDER(${text})LADDER\"},\n")
endforeach()
string(APPEND source "};\n\n}  // namespace\n\nstd::span<const WindowFile> window_files() {\n  return kFiles;\n}\n\n}  // namespace ladder\n")
file(WRITE ${OUT} "${source}")
