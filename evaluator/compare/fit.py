"""x"""
FitResult=cross_validate=fit_serving=None
