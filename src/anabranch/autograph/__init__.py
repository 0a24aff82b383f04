"""The outer loop of the search for an equal, faster graph: candidates that `rewrite.search` finds
under predicted costs (`appraise`) are judged by what they really take (`loop`); what was found is
kept in the cache (`recall`)."""
