/*
 * SHA-2 (FIPS 180-4) by the names under which CPython's module _sha2 calls it, from 3.13 on.
 *
 * Where that module is a part of the interpreter, as in Debian 13, the static library has it and not what it calls. A
 * library that has these functions has them instead of those here, which are weak.
 */
#include "dump.h"
#include <stdint.h>
#include <string.h>

#define WEAK __attribute__((weak))
#define ROTATE(word, count) ((word) >> (count) | (word) << (8 * sizeof(word) - (count)))

/* The fractional parts of the cube roots of the first 80 primes; SHA-256 has the first halves of 64. */
static const uint64_t constants[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
};
/* Those of the square roots of the first eight primes, whose first halves SHA-256 has. */
static const uint64_t first_primes[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
/* Those of the next eight, whose second halves SHA-224 has. */
static const uint64_t next_primes[8] = {
    0xcbbb9d5dc1059ed8, 0x629a292a367cd507, 0x9159015a3070dd17, 0x152fecd8f70e5939,
    0x67332667ffc00b31, 0x8eb44a8768581511, 0xdb0c2e0d64f98fa7, 0x47b5481dbefa4fa4,
};

#define DEFINE(BITS, WORD, ROUNDS, A, B, C, D, E, F, G, H, I, J, K, L)                                                 \
    struct hash_##BITS {                                                                                               \
        WORD words[8];                                                                                                 \
        uint64_t length;                                                                                               \
        uint8_t block[16 * sizeof(WORD)];                                                                              \
    };                                                                                                                 \
                                                                                                                       \
    static void take_##BITS(struct hash_##BITS *hash)                                                                  \
    {                                                                                                                  \
        WORD schedule[ROUNDS], s[8];                                                                                   \
        for (int i = 0; i < 16; i++) {                                                                                 \
            WORD word = 0;                                                                                             \
            for (size_t byte = 0; byte < sizeof word; byte++)                                                          \
                word = word << 8 | hash->block[i * sizeof word + byte];                                                \
            schedule[i] = word;                                                                                        \
        }                                                                                                              \
        for (int i = 16; i < ROUNDS; i++) {                                                                            \
            WORD x = schedule[i - 15], y = schedule[i - 2];                                                            \
            schedule[i] = schedule[i - 16] + (ROTATE(x, A) ^ ROTATE(x, B) ^ x >> C) + schedule[i - 7] +                \
                          (ROTATE(y, D) ^ ROTATE(y, E) ^ y >> F);                                                      \
        }                                                                                                              \
        memcpy(s, hash->words, sizeof s);                                                                              \
        for (int i = 0; i < ROUNDS; i++) {                                                                             \
            WORD x = s[7] + (ROTATE(s[4], J) ^ ROTATE(s[4], K) ^ ROTATE(s[4], L)) +                                    \
                     ((s[4] & s[5]) ^ (~s[4] & s[6])) + (WORD)(constants[i] >> (64 - 8 * sizeof(WORD))) + schedule[i]; \
            WORD y = (ROTATE(s[0], G) ^ ROTATE(s[0], H) ^ ROTATE(s[0], I)) +                                           \
                     ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));                                                  \
            memmove(s + 1, s, 7 * sizeof *s);                                                                          \
            s[4] += x;                                                                                                 \
            s[0] = x + y;                                                                                              \
        }                                                                                                              \
        for (int i = 0; i < 8; i++)                                                                                    \
            hash->words[i] += s[i];                                                                                    \
    }                                                                                                                  \
                                                                                                                       \
    static struct hash_##BITS *make_##BITS(const uint64_t *start, int shift)                                           \
    {                                                                                                                  \
        struct hash_##BITS *hash = arena_calloc(1, sizeof *hash);                                                      \
        for (int i = 0; hash && i < 8; i++)                                                                            \
            hash->words[i] = (WORD)(start[i] >> shift);                                                                \
        return hash;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    WEAK struct hash_##BITS *python_hashlib_Hacl_Hash_SHA2_copy_##BITS(const struct hash_##BITS *hash)                 \
    {                                                                                                                  \
        struct hash_##BITS *copy = arena_malloc(sizeof *copy);                                                         \
        if (copy)                                                                                                      \
            *copy = *hash;                                                                                             \
        return copy;                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    WEAK void python_hashlib_Hacl_Hash_SHA2_free_##BITS(struct hash_##BITS *hash)                                      \
    {                                                                                                                  \
        arena_free(hash);                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    WEAK int python_hashlib_Hacl_Hash_SHA2_update_##BITS(struct hash_##BITS *hash, const uint8_t *data, uint32_t size) \
    {                                                                                                                  \
        while (size) {                                                                                                 \
            size_t at = hash->length % sizeof hash->block, room = sizeof hash->block - at;                             \
            size_t part = size < room ? size : room;                                                                   \
            memcpy(hash->block + at, data, part);                                                                      \
            hash->length += part, data += part, size -= part;                                                          \
            if (part == room)                                                                                          \
                take_##BITS(hash);                                                                                     \
        }                                                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    /* Also of SHA-224 and SHA-384, of which the caller takes a part. */                                               \
    WEAK void python_hashlib_Hacl_Hash_SHA2_digest_##BITS(const struct hash_##BITS *hash, uint8_t *digest)             \
    {                                                                                                                  \
        struct hash_##BITS last = *hash;                                                                               \
        uint64_t bits = 8 * hash->length;                                                                              \
        size_t at = hash->length % sizeof last.block;                                                                  \
        last.block[at++] = 0x80;                                                                                       \
        memset(last.block + at, 0, sizeof last.block - at);                                                            \
        if (at > sizeof last.block - 2 * sizeof(WORD)) {                                                               \
            take_##BITS(&last);                                                                                        \
            memset(last.block, 0, sizeof last.block);                                                                  \
        }                                                                                                              \
        for (int i = 0; i < 8; i++)                                                                                    \
            last.block[sizeof last.block - 1 - i] = bits >> 8 * i;                                                     \
        take_##BITS(&last);                                                                                            \
        for (size_t i = 0; i < 8 * sizeof(WORD); i++)                                                                  \
            digest[i] = last.words[i / sizeof(WORD)] >> 8 * (sizeof(WORD) - 1 - i % sizeof(WORD));                     \
    }

DEFINE(256, uint32_t, 64, 7, 18, 3, 17, 19, 10, 2, 13, 22, 6, 11, 25)
DEFINE(512, uint64_t, 80, 1, 8, 7, 19, 61, 6, 28, 34, 39, 14, 18, 41)

#define DEFINE_START(NAME, BITS, START, SHIFT)                                                                         \
    WEAK struct hash_##BITS *python_hashlib_Hacl_Hash_SHA2_malloc_##NAME(void)                                         \
    {                                                                                                                  \
        return make_##BITS(START, SHIFT);                                                                              \
    }

DEFINE_START(224, 256, next_primes, 0)
DEFINE_START(256, 256, first_primes, 32)
DEFINE_START(384, 512, next_primes, 0)
DEFINE_START(512, 512, first_primes, 0)
