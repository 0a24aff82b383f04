"""One SQLite file that remembers timings, kernels, graphs and plans between processes.

In: a table name and the full canonical key, a text of any length. Out: the text or bytes stored
under exactly that key, or None. The cache may forget, but never lies, fails or blocks for long:

    get --> row with sha256(key)? --> same full key? --> checksum good? --> the value
                    | no                    | no               | no
                    +-----------------------+------------------+----------> None, a miss

Whatever is kept by key is a `Table`: a name with a version, and a codec; a text that does not read
back is a miss. What is kept, and what is forgotten first, is in `entries`; what goes wrong with the
file, and what becomes of it then, in `store`. Nothing in the file is ever executed.

>>> with Cache.open(None) as cache:
...     cache.put("timings", "conv2d 1x64x56x56 fp16 on h200", "11.7 us")
...     print(cache.get("timings", "conv2d 1x64x56x56 fp16 on h200"))
...     print(cache.get("timings", "conv2d 1x64x56x56 fp32 on h200"))
11.7 us
None
"""

from anabranch.cache.codec import RAW, Codec
from anabranch.cache.entries import FILE_NAME, TABLES, Cache, CacheEntry, CacheStats
from anabranch.cache.table import Table

__all__ = ["FILE_NAME", "RAW", "TABLES", "Cache", "CacheEntry", "CacheStats", "Codec", "Table"]
