from semimetric.search.exact import ExactIndex as ExactIndex
from semimetric.search.faiss_index import FaissIndex as FaissIndex
from semimetric.search.hits import Hits as Hits
from semimetric.search.index import HnswSettings as HnswSettings, Index as Index, IndexBackend as IndexBackend, build_index as build_index, check_place as check_place, open_index as open_index, register_index as register_index, search_run_index as search_run_index
from semimetric.search.milvus_index import MilvusIndex as MilvusIndex
