// The rows of the table of codecs; each is made in the file of its name.
#pragma once

#include "runtime/codec/codec.h"

namespace gradweave::runtime {

CodecRow none();

}  // namespace gradweave::runtime
