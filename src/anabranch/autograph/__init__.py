"""The outer loop of the search for an equal, faster graph: candidates that `rewrite.search` finds
under predicted costs (`appraise`) are judged by what they really take (`loop`), and so is what pays
in parts of the best so far (`parts`, `local`) or at all places at once (`everywhere`); `standing`
says where a search stands, and what was found is kept in the cache (`recall`)."""
