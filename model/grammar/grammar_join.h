#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Puts several grammars (grammar.h) into one. Rules that mean the same are there once, as Moore's
// algorithm finds the equal states of an automaton: rules are told apart by their text and then, in
// rounds, by the rules that they name. The schemas of many tools share most of theirs. One thread.
class GrammarJoin {
 public:
  // Adds the rules of `grammar`, which has passed CheckGrammar, has no comments, and has one rule a
  // line, or lines that continue it. Returns the name of its rule `root` here.
  std::string Add(std::string_view grammar);

  // The rules that `names`, results of Add, reach. They are called j0, j1, ...; the result of Add
  // is replaced in `names`. Call it once.
  std::string Rules(std::vector<std::string>& names) const;

 private:
  struct Rule {
    // The rule's text with a mark in the place of each name: attributes, "::=", and the body.
    std::string shape;
    std::vector<uint32_t> uses;  // the rules that it names, in order
  };

  std::vector<uint32_t> Reach(const std::vector<std::string>& names) const;
  std::map<uint32_t, uint32_t> Classes(const std::vector<uint32_t>& reached) const;

  std::vector<Rule> rules_;
};

}  // namespace penstock
