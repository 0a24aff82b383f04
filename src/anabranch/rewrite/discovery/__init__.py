"""Discovery: equations that nobody wrote.

| file | is asked |
|---|---|
| settings | over which operators and inputs are graphs enumerated |
| terms | which small graphs give equal numbers |
| generalise | for how many different inputs does the equation hold |
| egraph | what do known equations make of a term |
| implied | does an equation follow from what is known |
| equations | does it hold on other shapes, on which, and in which directions |
| pairs | which two calls are slices of one |
| written | does a table have the rule already |
"""
