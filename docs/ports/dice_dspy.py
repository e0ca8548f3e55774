import dspy

dspy.configure(lm=dspy.LM("openai/gpt-5.2"))
math = dspy.ChainOfThought("question -> answer: float")
result = math(question="Two dice are tossed. What is the chance of a sum of two?")
print(result.answer)
