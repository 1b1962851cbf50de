// top_k: the elements of largest magnitude, with their places; ranks choose different ones (Aji and Heafield, "Sparse
// Communication for Distributed Gradient Descent", EMNLP 2017). What is not sent is left behind.
#include "compressors/top_k.h"

#include "runtime/codec/rows.h"
#include "runtime/codec/sparse.h"

namespace gradweave::runtime {
namespace {

class TopK : public Codec {
 public:
  explicit TopK(const codec::TopK& parameters) : density_(parameters.density) {}

  std::unique_ptr<Pending> start(const Parcel& parcel, const Memory& before, Memory& after) const override {
    at::Tensor& left = compensated(parcel.call.flat, before, after);
    const at::Tensor places = largest(left, kept_elements(left.numel(), density_));
    return start_sum(parcel.call, taken_out(left, places), places);
  }

 private:
  double density_;
};

}  // namespace

CodecRow top_k() { return row_of<TopK, codec::TopK>("top_k"); }

}  // namespace gradweave::runtime
