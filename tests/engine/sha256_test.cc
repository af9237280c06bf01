// Vectors of FIPS 180-4 (NIST's examples) and RFC 4231.
#include "custom_ops/core/common/sha256.h"

#include <string>
#include <vector>

#include "check.h"

namespace tfring {
namespace {

std::string Hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

TEST(sha256_vectors) {
  struct Vector {
    const char* name;
    std::string message;
    const char* digest;
  };
  const std::vector<Vector> vectors = {
      {"empty", "",
       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "abc",
       "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"56 bytes", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"a million a", std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const Vector& vector : vectors) {
    CASE(vector.name);
    EXPECT_EQ(Hex(Sha256Of(vector.message.data(), vector.message.size())),
              vector.digest);
  }
}

TEST(sha256_does_not_depend_on_how_the_message_is_cut) {
  std::string message;
  for (int i = 0; i < 300; ++i) message += static_cast<char>(i);
  const Sha256Digest whole = Sha256Of(message.data(), message.size());
  for (const size_t step : {1, 7, 63, 64, 65, 128}) {
    CASE("step ", step);
    Sha256 hash;
    for (size_t at = 0; at < message.size(); at += step) {
      hash.Update(message.data() + at, std::min(step, message.size() - at));
    }
    EXPECT_TRUE(hash.Finish() == whole);
  }
}

TEST(hmac_vectors_of_rfc_4231) {
  struct Vector {
    const char* name;
    std::string key;
    std::string message;
    const char* mac;
  };
  std::string counting;
  for (int i = 1; i <= 25; ++i) counting += static_cast<char>(i);
  const std::vector<Vector> vectors = {
      {"case 1", std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"case 2", "Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {"case 3", std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {"case 4", counting, std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {"case 6", std::string(131, '\xaa'),
       "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {"case 7", std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than "
       "block-size data. The key needs to be hashed before being used by the "
       "HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Vector& vector : vectors) {
    CASE(vector.name);
    EXPECT_EQ(Hex(HmacSha256(vector.key, vector.message.data(),
                             vector.message.size())),
              vector.mac);
  }
}

TEST(hmac_vector_of_rfc_4231_case_5_truncated) {
  const std::string message = "Test With Truncation";
  const Sha256Digest mac =
      HmacSha256(std::string(20, '\x0c'), message.data(), message.size());
  EXPECT_EQ(Hex(mac).substr(0, 32), "a3b6167473100ee06e0c796c2955552b");
}

TEST(constant_time_equal_sees_every_byte) {
  const Sha256Digest digest = Sha256Of("x", 1);
  EXPECT_TRUE(ConstantTimeEqual(digest.data(), digest.data(), digest.size()));
  for (size_t i = 0; i < digest.size(); ++i) {
    CASE("byte ", i);
    Sha256Digest other = digest;
    other[i] ^= 0x10;
    EXPECT_FALSE(ConstantTimeEqual(digest.data(), other.data(), digest.size()));
  }
}

TEST(random_bytes_differ_from_call_to_call) {
  Sha256Digest a{};
  Sha256Digest b{};
  ASSERT_OK(RandomBytes(a.data(), a.size()));
  ASSERT_OK(RandomBytes(b.data(), b.size()));
  EXPECT_TRUE(a != b);
}

}  // namespace
}  // namespace tfring
