// The blocks in use, by address: a table without an allocation of its own for each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memprof {

struct Block {
  uint64_t address; // 0: an empty place of the table
  int64_t size;
  int64_t serial;
  int32_t stack;
  int32_t label;
};
static_assert(sizeof(Block) == 32, "read by name in memprof/sources/cpu/allocator_source.py");

// Open addressing with linear probing, never more than half full; what is erased leaves no trace.
class BlockTable {
 public:
  Block* find(uint64_t address) {
    Block& place = places_[place_of(address)];
    return place.address == 0 ? nullptr : &place;
  }

  // In place of a block with the same address, if there is one.
  void put(const Block& block) {
    Block* place = &places_[place_of(block.address)];
    if (place->address == 0) {
      if (++count_ * 2 > places_.size()) {
        resize(places_.size() * 2);
        place = &places_[place_of(block.address)];
      }
    }
    *place = block;
  }

  void erase(Block* block) {
    size_t hole = static_cast<size_t>(block - places_.data());
    for (size_t at = next(hole); places_[at].address != 0; at = next(at)) {
      // A block moves up unless its search begins behind the hole.
      const size_t home = home_of(places_[at].address);
      if (((at - home) & mask()) >= ((at - hole) & mask())) {
        places_[hole] = places_[at];
        hole = at;
      }
    }
    places_[hole].address = 0;
    --count_;
  }

  void clear() {
    count_ = 0;
    std::vector<Block>(kLeast).swap(places_);
  }

  std::vector<Block> all() const {
    std::vector<Block> found;
    found.reserve(count_);
    for (const Block& one : places_) {
      if (one.address != 0) {
        found.push_back(one);
      }
    }
    return found;
  }

 private:
  static constexpr size_t kLeast = 1024; // a power of two

  size_t mask() const {
    return places_.size() - 1;
  }
  size_t next(size_t place) const {
    return (place + 1) & mask();
  }
  size_t home_of(uint64_t address) const {
    return static_cast<size_t>((address * 0x9E3779B97F4A7C15ull) >> 32) & mask();
  }
  // Where the address is, or would be.
  size_t place_of(uint64_t address) const {
    size_t place = home_of(address);
    while (places_[place].address != 0 && places_[place].address != address) {
      place = next(place);
    }
    return place;
  }
  void resize(size_t size) {
    std::vector<Block> before(size);
    before.swap(places_);
    for (const Block& one : before) {
      if (one.address != 0) {
        places_[place_of(one.address)] = one;
      }
    }
  }

  std::vector<Block> places_ = std::vector<Block>(kLeast);
  size_t count_ = 0;
};

} // namespace memprof
