// What kind of file a text is, told by its content.
#pragma once

#include <string_view>

#include "io/json_tree.h"

namespace gradweave {

struct FileKind {
  std::string_view name;   // "workload"
  std::string_view taker;  // what takes such a file: "--workload takes this one"
};

// Returns the kind of file that has `root`'s keys; nullptr if none is known. O(keys).
const FileKind* kind_of(const JsonNode& root);

// The same of a text that may be anything, output of nccl-tests included. O(size).
const FileKind* kind_of(std::string_view text);

// Errors: InvalidInput if `kind` is another one than `wanted`, a name of a kind.
void require_kind(const FileKind* kind, std::string_view wanted);

// The same of a file of Gradweave's own, which also has to be of version 1.
void require_kind(const JsonNode& root, std::string_view wanted);

}  // namespace gradweave
