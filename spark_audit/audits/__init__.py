"""Audits: what a checkpoint's scores say, each a class.

:class:`~spark_audit.audits.base.Audit` says what each of them must give. Other packages
add theirs by the entry point ``spark_audit.audits``.
"""

from spark_audit.audits.base import Audit as Audit
from spark_audit.audits.canary import CanaryRank as CanaryRank
from spark_audit.audits.catalogue import AUDITS as AUDITS
from spark_audit.audits.catalogue import about as about
from spark_audit.audits.catalogue import all_audits as all_audits
from spark_audit.audits.catalogue import find as find
from spark_audit.audits.catalogue import in_order as in_order
from spark_audit.audits.catalogue import label as label
from spark_audit.audits.catalogue import metric_of as metric_of
from spark_audit.audits.embedding_noise import Noise as Noise
from spark_audit.audits.extract import Extraction as Extraction
from spark_audit.audits.matched.matched_selectivity import Matched as Matched
from spark_audit.audits.mia.membership import Membership as Membership
from spark_audit.audits.nll import NLL as NLL
from spark_audit.audits.rise import Twins as Twins
from spark_audit.audits.series_attack import SeriesAttack as SeriesAttack
from spark_audit.audits.stage_memory import Stages as Stages
from spark_audit.audits.task_accuracy import Utility as Utility
from spark_audit.audits.vocabulary_rank import Rank as Rank
