"""What a draft or verifier process does with logits, in torch. The mathematics is in docs/acceptance.md.

The words used here:

========== =============================================================================================================
logits     [R, W] what the model gave, any floating type; ids from the vocabulary size on are padding
row        one position whose next token is asked for: a session's last committed token, or a node of its proposal
path       the in-flight tokens between the last committed token and a row
scores     [R, V] float32 unnormalised log-probabilities after every sampling parameter; -inf is impossible
p, q       softmax of the scores: the target's distribution, and the drafter's
noise      standard Gumbel numbers; argmax(scores + noise) is a draw from softmax(scores)
key        [5] what a row's noise is a function of: seed (low, high), position, base length, domain
entry      one (node, token, probability) of the sparse draft distributions of a batch
residual   what is left of p where a proposal fell: max(0, p - q), normalised
========== =============================================================================================================

`Judging` and `draft_rows` are the two entry points; they take all rows of a forward pass at once and copy results to
the host once. `Judging` can leave the device at work meanwhile; `verify_rows` is it and the wait.
"""
