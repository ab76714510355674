// std::format for compilers without it (GCC 12). mlx-c formats error texts
// with plain `{}` placeholders only, and so does this stand-in.
#pragma once
#include <version>
#ifndef __cpp_lib_format
#include <sstream>
#include <string>
#include <string_view>

namespace std {

inline void sluice_format_to(ostringstream& out, string_view text) {
  out << text;
}

template <class First, class... Rest>
void sluice_format_to(
    ostringstream& out, string_view text, const First& first, const Rest&... rest) {
  auto hole = text.find("{}");
  out << text.substr(0, hole);
  if (hole != string_view::npos) {
    out << first;
    sluice_format_to(out, text.substr(hole + 2), rest...);
  }
}

template <class... Arguments>
string format(string_view text, const Arguments&... arguments) {
  ostringstream out;
  sluice_format_to(out, text, arguments...);
  return out.str();
}

} // namespace std
#endif
