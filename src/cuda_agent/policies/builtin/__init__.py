"""The builtin policy: a small causal language model that speaks the tool calls of any LLM.

An episode is one append-only stream of tokens. What the model writes is constrained to valid calls
(automaton.py), sampled for many episodes at once (decoding.py). Training uses the same names:

    builtin = Builtin.untrained(seed=0)                  # or Builtin.load(folder, critic="shared")
    stream = builtin.begin(task)                         # task, opening, call token
    [made] = sample(builtin, [stream], [task.space])     # Generation: ids, allowed, logprobs, call
    stream += [*made.ids, *builtin.answer(step)]         # feedback, next call token
    logits_B_T_V, values_B_T = builtin.model(ids_B_T)    # position t predicts token t + 1
    logprobs_B_T, entropy_B_T = constrained_logprobs(logits_B_T_V, allowed_B_T_A, ids_B_T)

Another policy's calls are learnt from by `encode_call(call, space, tokenizer)` (ids with the end
token) and `automaton(space, tokenizer).walk(ids)` (what was allowed at each).
"""

from cuda_agent.policies.builtin.automaton import Automaton, automaton, encode_call
from cuda_agent.policies.builtin.bundle import Builtin
from cuda_agent.policies.builtin.decoding import Generation, constrained_logprobs, fits, sample
from cuda_agent.policies.builtin.language_model import Critic, LanguageModel
from cuda_agent.policies.builtin.model import CausalLM, Config
from cuda_agent.policies.builtin.render import call_text, feedback, opening
from cuda_agent.policies.builtin.tokenizer import Tokenizer, shipped, train

__all__ = [
    "Automaton", "Builtin", "CausalLM", "Config", "Critic", "Generation", "LanguageModel",
    "Tokenizer", "automaton",
    "call_text", "constrained_logprobs", "encode_call", "feedback", "fits", "opening", "sample",
    "shipped", "train",
]
