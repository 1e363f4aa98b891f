"""Every sentence of a report, by its key: templates as data, and what renders them."""

from spark_audit.sentences.renderer import DECIMALS as DECIMALS
from spark_audit.sentences.renderer import add_templates as add_templates
from spark_audit.sentences.renderer import capitalised as capitalised
from spark_audit.sentences.renderer import knows as knows
from spark_audit.sentences.renderer import number as number
from spark_audit.sentences.renderer import optional as optional
from spark_audit.sentences.renderer import p_value as p_value
from spark_audit.sentences.renderer import probability as probability
from spark_audit.sentences.renderer import render as render
from spark_audit.sentences.renderer import terms as terms
from spark_audit.sentences.renderer import translated as translated
from spark_audit.sentences.renderer import under as under
