// The rows of the table of codecs; each is made in the file of its name.
#pragma once

#include "runtime/codec/codec.h"

namespace gradweave::runtime {

CodecRow bf16();  // cast.cc
CodecRow dgc();
CodecRow ef_signsgd();
CodecRow fp16();  // cast.cc
CodecRow int2();  // quantized.cc
CodecRow int4();  // quantized.cc
CodecRow int8();  // quantized.cc
CodecRow ok_top_k();
CodecRow power_sgd();
CodecRow random_k();
CodecRow top_k();

}  // namespace gradweave::runtime
