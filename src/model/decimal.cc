#include "gradweave/decimal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "gradweave/error.h"

namespace gradweave {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::int32_t kMaxScale = 40;
constexpr int kMaxDigits = 18;
constexpr std::int64_t kLargest = std::int64_t{1} << 62;

constexpr int kLargestPower = 38;  // 10^38 is the largest power of ten below 2^127

constexpr auto kPowersOfTen = [] {
  std::array<Wide, kLargestPower + 1> powers{1};
  for (std::size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * 10;
  return powers;
}();

Wide power_of_ten(std::int32_t exponent) { return kPowersOfTen[static_cast<std::size_t>(exponent)]; }

int digits_of(Wide value) {
  int digits = 0;
  for (; value > 0; value /= 10) ++digits;
  return digits;
}

Decimal normalised(std::int64_t mantissa, std::int32_t scale) {
  while (scale > 0 && mantissa % 10 == 0 && mantissa != 0) {
    mantissa /= 10;
    --scale;
  }
  return mantissa == 0 ? Decimal{} : Decimal{mantissa, scale};
}

}  // namespace

Decimal decimal_from_double(double value, const std::string& where) {
  if (!std::isfinite(value) || value < 0) {
    throw InvalidInput("must be a finite number that is not negative", where);
  }
  if (value == 0) return {};
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  std::int64_t mantissa = 0;
  std::int32_t scale = 0;
  const char* at = text;
  for (bool fraction = false; *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
    } else {
      mantissa = mantissa * 10 + (*at - '0');
      scale += fraction ? 1 : 0;
    }
  }
  std::int32_t exponent = 0;
  const char* sign = at + 1;
  std::from_chars(*sign == '+' ? sign + 1 : sign, end, exponent);
  scale -= exponent;
  for (; scale < 0; ++scale) {
    if (mantissa > kLargest / 10) throw InvalidInput("is too large", where, "give a smaller number");
    mantissa *= 10;
  }
  const Decimal result = normalised(mantissa, scale);
  if (result.scale > kMaxScale || digits_of(static_cast<Wide>(result.mantissa)) > kMaxDigits) {
    throw InvalidInput("has more digits than can be kept exactly", where,
                       "give a number of at most 18 digits");
  }
  return result;
}

double to_double(Decimal value) {
  // Reading the digits back is correctly rounded, unlike a division by a power of ten.
  char text[64];
  char* end = std::to_chars(text, text + 32, value.mantissa).ptr;
  *end++ = 'e';
  end = std::to_chars(end, text + sizeof text, -value.scale).ptr;
  double result = 0;
  std::from_chars(text, end, result);
  return result;
}

std::int64_t multiply_ceil(std::int64_t count, Decimal rate) {
  const Wide product = static_cast<Wide>(count) * static_cast<Wide>(rate.mantissa);
  // Every product is below the largest power of ten.
  const Wide divisor = power_of_ten(std::min(rate.scale, kLargestPower));
  if (product >> 62 == 0 && divisor >> 62 == 0) {  // the usual case, and a 64-bit division
    const auto dividend = static_cast<std::uint64_t>(product);
    const auto quotient = dividend / static_cast<std::uint64_t>(divisor);
    return static_cast<std::int64_t>(quotient +
                                     (quotient * static_cast<std::uint64_t>(divisor) != dividend ? 1 : 0));
  }
  const Wide quotient = product / divisor;
  const Wide result = quotient + (quotient * divisor != product ? 1 : 0);
  if (result > static_cast<Wide>(kLargest)) {
    throw InvalidInput("takes more than 2^62 ns", "a message", "give smaller sizes, times or us_per_byte");
  }
  return static_cast<std::int64_t>(result);
}

Decimal multiply_ratio(Decimal rate, std::int64_t numerator, std::int64_t denominator) {
  if (rate.mantissa == 0) return {};
  // Long division, digit by digit, until 15 significant digits and one for rounding are there.
  const Wide dividend = static_cast<Wide>(rate.mantissa) * static_cast<Wide>(numerator);
  const auto divisor = static_cast<Wide>(denominator);
  Wide quotient = dividend / divisor;
  Wide remainder = dividend % divisor;
  std::int32_t scale = rate.scale;
  while (remainder != 0 && digits_of(quotient) < 16 && scale < kMaxScale + 16) {
    remainder *= 10;
    quotient = quotient * 10 + remainder / divisor;
    remainder %= divisor;
    ++scale;
  }
  while (digits_of(quotient) > 15 && scale > 0) {
    const bool up = digits_of(quotient) == 16 && quotient % 10 >= 5;
    quotient = quotient / 10 + (up ? 1 : 0);
    --scale;
  }
  while (scale > kMaxScale) {
    quotient /= 10;
    --scale;
  }
  if (quotient > static_cast<Wide>(kLargest)) {
    throw InvalidInput("is out of range", "scaled rate", "give a smaller number of workers");
  }
  return normalised(static_cast<std::int64_t>(quotient), scale);
}

Decimal sum_of(Decimal a, Decimal b) {
  if (a.scale > b.scale) std::swap(a, b);  // b has the finer digits
  Wide coarse = static_cast<Wide>(a.mantissa);
  auto fine = static_cast<Wide>(b.mantissa);
  const auto drop_digit = [](Wide value) { return value / 10 + (value % 10 >= 5 ? 1 : 0); };
  for (; a.scale < b.scale && digits_of(coarse) < 2 * kMaxDigits; ++a.scale) coarse *= 10;
  for (; b.scale > a.scale; --b.scale) fine = drop_digit(fine);
  Wide sum = coarse + fine;
  for (; digits_of(sum) > kMaxDigits && a.scale > 0; --a.scale) sum = drop_digit(sum);
  if (sum > static_cast<Wide>(kLargest))
    throw InvalidInput("is out of range", "sum of rates", "give smaller rates");
  return normalised(static_cast<std::int64_t>(sum), a.scale);
}

Decimal times_1000(Decimal rate) {
  for (int i = 0; i < 3; ++i) {
    if (rate.scale > 0) {
      --rate.scale;
    } else if (rate.mantissa > kLargest / 10) {
      throw InvalidInput("is too large", "rate", "give a smaller number");
    } else {
      rate.mantissa *= 10;
    }
  }
  return rate;
}

std::int64_t floor_share(std::int64_t total, std::int64_t part, std::int64_t whole) {
  return static_cast<std::int64_t>(static_cast<Wide>(total) * static_cast<Wide>(part) /
                                   static_cast<Wide>(whole));
}

}  // namespace gradweave
