// The files of src/report/page/, which CMake puts into the library.
#pragma once

#include <string_view>

namespace gradweave {

extern const std::string_view kPageHtml, kPageStyle, kPageScript;

}  // namespace gradweave
