"""Chat templates in the form of the public families, and a tokenizer for all of them.

They are written for these tests: the shape of headers, of ends of turns and of what is
trimmed is that of each family; ``G`` marks stand for ``{% generation %}`` blocks.
"""

from typing import Any

from tiny_models import make_tokenizer
from tokenizers import AddedToken

CHATML = """
{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\\n' -}}
{%- <G> -%}{{- m['content'] + '<|im_end|>' -}}{%- </G> -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

LLAMA2 = """
{%- if messages[0]['role'] == 'system' -%}
{%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate') }}{%- endif -%}
{%- if m['role'] == 'user' -%}
{{- bos_token + '[INST] ' + (system if loop.first else '') -}}
{{- m['content'].strip() + ' [/INST]' -}}
{%- else -%}
{%- <G> -%}{{- ' ' + m['content'].strip() + ' ' + eos_token -}}{%- </G> -%}
{%- endif -%}{%- endfor -%}"""

LLAMA3 = """
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' -}}
{%- <G> -%}{{- m['content'] | trim + '<|eot_id|>' -}}{%- </G> -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""

MISTRAL = """
{{- bos_token -}}
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}[SYSTEM_PROMPT]{{ m['content'] }}[/SYSTEM_PROMPT]
{%- elif m['role'] == 'user' -%}[INST]{{ m['content'] }}[/INST]
{%- else -%}{%- <G> -%}{{ m['content'] + eos_token }}{%- </G> -%}{%- endif -%}
{%- endfor -%}"""

GEMMA = """
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
{%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] -%}
{{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') -}}
{%- <G> -%}{{- m['content'] | trim + '<end_of_turn>' -}}{%- </G> -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""

PHI = """
{%- for m in messages -%}
{{- '<|' + m['role'] + '|>\\n' -}}
{%- <G> -%}{{- m['content'] + '<|end|>' -}}{%- </G> -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}
{%- else -%}{{- eos_token -}}{%- endif -%}"""

ZEPHYR = """
{%- for m in messages -%}
{{- '<|' + m['role'] + '|>\\n' -}}
{%- <G> -%}{{- m['content'] + eos_token -}}{%- </G> -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"""

VICUNA = """
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{{- m['content'] + ' ' -}}
{%- elif m['role'] == 'user' -%}{{- 'USER: ' + m['content'] + ' ' -}}
{%- else -%}{{- 'ASSISTANT:' -}}
{%- <G> -%}{{- ' ' + m['content'] + eos_token -}}{%- </G> -%}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"""

QWEN_THINKING = """
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}
{%- if m['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\\n' -}}
{%- if m['role'] == 'assistant' -%}
{%- set parts = m['content'].split('</think>') -%}
{%- <G> -%}
{%- if loop.index0 > ns.last -%}
{{- '<think>\\n' + (parts[0] | replace('<think>', '') | trim if parts | length > 1
    else '') + '\\n</think>\\n\\n' -}}{%- endif -%}
{{- parts[-1] | trim + '<|im_end|>' -}}{%- </G> -%}{{- '\\n' -}}
{%- else -%}{{- m['content'] + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"""

DEEPSEEK = """
{{- bos_token -}}
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{{- m['content'] -}}
{%- elif m['role'] == 'user' -%}{{- '<|User|>' + m['content'] -}}
{%- else -%}{{- '<|Assistant|>' -}}
{%- <G> -%}{{- m['content'].split('</think>')[-1] + eos_token -}}{%- </G> -%}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|>' -}}{%- endif -%}"""

COMMAND = """
{{- bos_token -}}
{%- for m in messages -%}
{%- set role = {'user': 'USER', 'system': 'SYSTEM'}.get(m['role'], 'CHATBOT') -%}
{{- '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' -}}
{%- <G> -%}{{- m['content'].strip() + '<|END_OF_TURN_TOKEN|>' -}}{%- </G> -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}"""

GRANITE = """
{%- for m in messages -%}
{{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' -}}
{%- <G> -%}{{- m['content'] + '<|end_of_text|>' -}}{%- </G> -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}"""

FAMILIES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "phi": PHI,
    "zephyr": ZEPHYR,
    "vicuna": VICUNA,
    "qwen-thinking": QWEN_THINKING,
    "deepseek": DEEPSEEK,
    "command": COMMAND,
    "granite": GRANITE,
}
SPECIAL = (
    "<|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> "
    "<start_of_turn> <end_of_turn> <|end|> <|user|> <|assistant|> <|system|> "
    "<|User|> <|Assistant|> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> "
    "<|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> <|start_of_role|> "
    "<|end_of_role|> <|end_of_text|> [INST] [/INST]"
).split()


def template_of(family: str, *, generation: bool) -> str:
    """A family's template, with or without marks of what an assistant writes."""
    text = FAMILIES[family].strip()
    is_assistant = "m['role'] == 'assistant'"
    while "{%- <G> -%}" in text:
        before, _, rest = text.partition("{%- <G> -%}")
        body, _, after = rest.partition("{%- </G> -%}")
        marked = body
        if generation:
            # Only what an assistant writes is marked.
            marked = (
                f"{{%- if {is_assistant} -%}}"
                f"{{%- generation -%}}{body}{{%- endgeneration -%}}"
                f"{{%- else -%}}{body}{{%- endif -%}}"
            )
        text = before + marked + after
    return text


def chat_tokenizer(family: str = "chatml", *, generation: bool = False) -> Any:
    """The usual tiny tokenizer with the special tokens of all families."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.chat_template = template_of(family, generation=generation)
    return tokenizer
