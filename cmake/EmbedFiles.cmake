# Writes files into a C++ source, byte by byte: cmake -DOUTPUT=... -DFILES=a|b|... -P EmbedFiles.cmake
#
# The source defines EmbeddedFiles() of coordinator/service/page/embedded_files.h. Every file gets the
# start of its SHA-256 as entity tag.
string(REPLACE "|" ";" FILES "${FILES}")
set(ARRAYS "")
set(ENTRIES "")
set(NUMBER 0)
foreach(FILE_PATH IN LISTS FILES)
  get_filename_component(NAME "${FILE_PATH}" NAME)
  file(READ "${FILE_PATH}" BYTES HEX)
  file(SHA256 "${FILE_PATH}" DIGEST)
  string(SUBSTRING "${DIGEST}" 0 16 TAG)
  string(LENGTH "${BYTES}" DIGITS)
  math(EXPR SIZE "${DIGITS} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," BYTES "${BYTES}")
  string(APPEND ARRAYS "constexpr char kFile${NUMBER}[] = {${BYTES}};\n")
  string(APPEND ENTRIES "      {\"${NAME}\", {kFile${NUMBER}, ${SIZE}}, \"\\\"${TAG}\\\"\"},\n")
  math(EXPR NUMBER "${NUMBER} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Written by cmake/EmbedFiles.cmake.
#include \"coordinator/service/page/embedded_files.h\"

namespace sparsebalance {
namespace {

${ARRAYS}
}  // namespace

const std::vector<EmbeddedFile>& EmbeddedFiles() {
  static const auto* const files = new std::vector<EmbeddedFile>{
${ENTRIES}  };
  return *files;
}

}  // namespace sparsebalance
")
